"""Every case from the field: on the reference, the interpreter, the CPU and Triton."""

import importlib.util

import pytest
import test_cases_attention
import test_cases_matmul
import test_cases_norm
from field_cases import check_controls, check_cpu, check_reference, triton_failures

GROUPS = {
    "attention": test_cases_attention.CASES,
    "matmul": test_cases_matmul.CASES,
    "norm": test_cases_norm.CASES,
}
CASES = [case for group in GROUPS.values() for case in group]
LONG = {"393216 columns"}  # minutes in Triton's interpreter
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@every_case
def test_reference_and_interpreter(case):
    check_reference(case)


@pytest.mark.backend
@every_case
def test_cpu(case, tmp_path):
    check_cpu(case, tmp_path)


@every_case
def test_gate_fails_what_is_wrong(case, tmp_path):
    check_controls(case, tmp_path)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("group", GROUPS)
def test_triton(group, tmp_path):
    cases = [case for case in GROUPS[group] if case.name not in LONG]
    assert triton_failures(cases, tmp_path) == []
