# `make artifact` reproduces the paper's evaluation, `make test` checks the project. All targets set up what they need.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
PIP := $(VENV)/bin/python -m pip --quiet --disable-pip-version-check
CORES ?= all
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export VIRTUAL_ENV := $(CURDIR)/$(VENV)

.PHONY: artifact smoke test test-slow clean
.DELETE_ON_ERROR:

artifact: compiler $(READY)
	snakemake --cores $(CORES)

smoke: compiler $(READY)
	snakemake --cores $(CORES) --config overrides="suite=smoke"

test: compiler $(READY)
	ruff check .
	ruff format --check .
	snakefmt --check Snakefile
	lint-imports
	snakemake --lint
	python -m pytest -n 2 --dist worksteal -m "not slow" tests

# Many more random programs, and larger ones, through the search and the prover.
test-slow: compiler $(READY)
	python -m pytest -n 2 -m slow tests

clean:
	rm -rf $(VENV)

# A second call installs nothing. The stamp is written last, so an interrupted installation is done again from the start.
$(READY): requirements.lock requirements-triton.lock
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null || \
	{ echo "prism: $(PYTHON) is missing or not Python 3.11 to 3.13; name one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	{ echo "prism: $(PYTHON) cannot make virtual environments; install its venv package (Debian: apt-get install python3-venv)" >&2; exit 1; }
	@rm -rf $(VENV)
	@echo "Installing requirements.lock into $(VENV); this takes a minute or a few, once."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install -r requirements.lock
	@$(VENV)/bin/python -c 'import triton' 2>/dev/null || $(PIP) install --no-deps -r requirements-triton.lock
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: compiler
compiler:
	@command -v $${CXX:-g++} >/dev/null || { test -z "$$CXX" && command -v clang++ >/dev/null; } || \
	{ echo "prism: no C++ compiler: install g++ (Debian: apt-get install g++) or set CXX to one" >&2; exit 1; }
