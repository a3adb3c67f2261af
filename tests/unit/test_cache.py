"""The cache of searches: same program under other names, damage, limits, and what is never kept."""

import dataclasses
import json
import sqlite3

import pytest

import prism.search
from prism import cache, cli, config
from prism.program import Builder, parse, program_from_json
from prism.program.canonical import apart, canonical, words
from prism.search import Bounds
from prism.sgraph.family import Space

BOUNDS = Bounds(extra_operators=0, grid=1, generated=1, library=())


def norm(names="X W n d f O eps", dtype="bf16", eps=1e-5, name="mine"):
    x, w, n, d, f, out, small = names.split()
    formula = f"{out} = matmul(rms_norm({x}, {d}, {small}), {w}, {d})"
    sizes = {axis: axis for axis in (n, d, f)}
    return parse(name, formula, {x: [n, d], w: [d, f]}, sizes, {small: eps}, dtype)


def plain_matmul():
    sizes = {axis: axis for axis in "ndf"}
    inputs = {"X": ["n", "d"], "W": ["d", "f"]}
    return parse("mine", "O = matmul(X, W, d)", inputs, sizes, {})


@pytest.fixture
def searches(monkeypatch):
    """The programs that were searched, as the search got them."""
    done, run = [], prism.search.search

    def search(program, *args, **more):
        done.append(program)
        return run(program, *args, **more)

    monkeypatch.setattr(prism.search, "search", search)
    return done


def find(program, bounds=BOUNDS, **more):
    said = []
    return cache.search(program, bounds, warn=said.append, **more), said


def test_the_same_program_is_searched_once(searches):
    (first, _), (again, said) = find(norm()), find(norm())
    assert len(searches) == 1
    assert again == first | {"cached": True}
    assert again["seconds"]["total"] == first["seconds"]["total"] > 0
    assert said == []


def test_names_and_dtype_do_not_matter(searches):
    first, _ = find(norm())
    other = norm("Input0 Weights rows cols width Result tiny", dtype="fp32", name="other")
    found, _ = find(other)
    assert len(searches) == 1
    assert found["cached"] and found["workload"] == "other"
    assert program_from_json(found["program"]) == other
    text = json.dumps(found["space"])
    assert '"Weights"' in text and '"cols"' in text and "1 / cols" in text and "tiny" in text
    assert not any(f'"{name}"' in text for name in ("X", "W", "d", "axis0", "input0", "output0"))
    alone, _ = find(other, remember=False)
    assert alone["space"] == found["space"], "ids mean the same with and without the cache"
    assert first["graphs"] == found["graphs"]


@pytest.mark.parametrize(
    ("program", "bounds"),
    [
        (norm(eps=1e-6), BOUNDS),
        (plain_matmul(), BOUNDS),
        (norm(), dataclasses.replace(BOUNDS, grid=2)),
        (norm(), dataclasses.replace(BOUNDS, seed=1)),
    ],
)
def test_another_program_or_bound_is_another_search(searches, program, bounds):
    find(norm())
    found, _ = find(program, bounds)
    assert len(searches) == 2 and "cached" not in found


def test_another_version_of_prism_is_another_search(searches, monkeypatch):
    find(norm())
    monkeypatch.setattr(cache, "_versions", lambda: ("other sources", "13"))
    assert "cached" not in find(norm())[0]


@pytest.mark.parametrize(
    ("ended", "gaps"),
    [
        ("time limit of 1 s", []),
        ("interrupted", []),
        ("exhausted", [prism.search.result.Gap("exp(X)", "time limit of 1 s")]),
    ],
)
def test_what_a_limit_or_the_user_ended_is_not_kept(searches, monkeypatch, ended, gaps):
    run = prism.search.search

    def limited(*args, **more):
        result = run(*args, **more)
        result.ended, result.gaps = ended, gaps
        return result

    monkeypatch.setattr(prism.search, "search", limited)
    find(norm())
    assert "cached" not in find(norm())[0]
    assert len(searches) == 2


def entry(folder, sql, *values):
    with sqlite3.connect(folder / "searches/cache.db") as database:
        database.execute(sql, values)
    database.close()


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE Cache SET mode = 1, filename = NULL, value = x'78da0badc0de'",  # not what it was
        "UPDATE Cache SET mode = 4, filename = NULL, value = x'80046e2e'",  # a pickle
    ],
)
def test_a_damaged_result_is_discarded(searches, own_cache, sql):
    find(norm())
    entry(own_cache, sql)
    found, said = find(norm())
    assert len(searches) == 2 and "cached" not in found
    (line,) = said
    assert "a damaged result was discarded" in line and "\n" not in line
    assert find(norm()) == (found | {"cached": True}, [])


@pytest.mark.parametrize("change", [{"graphs": {"all": 1}}, {"ended": "exhausted?"}, None])
def test_a_result_that_was_edited_is_discarded(searches, own_cache, change):
    """The digest tells, whatever was changed; an entry of another form has none."""
    found, _ = find(norm())
    key = cache._key(canonical(norm())[0], BOUNDS)
    store = cache._Store(lambda _text: None)
    with store._open() as database:
        whole = database[key]
        database[key] = {**whole, "result": whole["result"] | change} if change else {"space": []}
    again, said = find(norm())
    assert "cached" not in again and again["graphs"] == found["graphs"]
    (line,) = said
    assert "a damaged result was discarded" in line


def test_a_damaged_database_is_discarded(searches, own_cache):
    find(norm())
    (own_cache / "aa").mkdir()  # somebody else's
    for path in own_cache.glob("searches/cache.db*"):
        path.write_bytes(b"no database" * 1000)
    _, said = find(norm())
    assert len(searches) == 2
    assert "was damaged and is discarded" in said[0] and "\n" not in said[0]
    assert find(norm())[0]["cached"] and (own_cache / "aa").is_dir()


def test_a_folder_that_cannot_be_used_is_a_warning(searches, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PRISM_CACHE", str(tmp_path / "file"))
    found, said = find(norm())
    assert found["graphs"]["all"] > 0
    assert said and all("cannot be used" in line and "\n" not in line for line in said)


def test_the_command_line_says_cached_and_can_do_without(searches, capsys):
    args = ["search", "search.grid=1", "search.generated=1", "search.extra_operators=0"]
    for more, times, cached in (([], 1, False), ([], 1, True), (["search.cache=false"], 2, False)):
        assert cli.main([*args, *more]) == 0
        assert ("cached: nothing was searched" in capsys.readouterr().out) == cached
        assert len(searches) == times
    data = config.search_slice(config.compose(args[1:]))
    assert cli.main(["search", f"slice={json.dumps(data)}"]) == 0
    assert len(searches) == 3, "the seconds of a workflow's search are results"


# Canonical names --------------------------------------------------------------------------


def test_canonical_programs_of_equal_programs_are_equal():
    one, names = canonical(norm())
    other, others = canonical(norm("A B b a c Z e"))
    assert one == other
    assert one.sizes == {a: a for a in ("axis0", "axis1", "axis2")} and one.params == {
        "param0": 1e-5
    }
    assert {names["axis1"], others["axis1"]} == {"d", "a"}
    assert canonical(norm(eps=2e-5))[0] != one


def test_the_order_in_which_inputs_are_declared_does_not_matter():
    def product(order):
        axes = {"A": "n d", "B": "d f"}
        b = Builder("p", sizes={"n": "n", "d": "d", "f": "f"})
        found = {name: b.input(name, axes[name]) for name in order}
        return b.build(O=b.matmul(found["A"], found["B"], "d"))

    assert canonical(product("AB"))[0] == canonical(product("BA"))[0]


def test_a_tensor_named_as_the_search_names_its_own_is_kept_apart(searches):
    program = norm("t1 t2 n split f O eps")
    found, _ = find(program, Bounds(extra_operators=0, grid=1, library=()))
    for _, graph in zip(range(400), graphs_of(found), strict=False):
        written = [name for kernel in graph.kernels for name in kernel.writes]
        assert not {"t1", "t2"} & set(written) and len(set(written)) == len(written)
        assert all("split" not in kernel.fresh for kernel in graph.kernels)
    assert '"split2"' in json.dumps(found["space"]) and '"t3"' in json.dumps(found["space"])


def test_kernels_that_are_listed_one_by_one_are_renamed_and_kept(searches):
    bounds = dataclasses.replace(BOUNDS, generator="exhaustive", generated=2)
    formula, axes = "O = sum(exp(t1), split)", ["n", "split"]
    program = parse("mine", formula, {"t1": axes}, {axis: axis for axis in axes}, {})
    found, _ = find(program, bounds)
    assert "listed" in found["space"][0]["kernels"][0]
    graphs = list(graphs_of(found))
    assert any(len(graph.kernels) == 2 for graph in graphs)
    assert all("split" not in kernel.fresh for graph in graphs for kernel in graph.kernels)
    assert any("split2" in kernel.fresh for graph in graphs for kernel in graph.kernels)
    assert find(program, bounds)[0] == found | {"cached": True}


def graphs_of(found):
    space = Space.from_json(found["space"])
    return (space.graph(name) for name in space.draw(400, 0, False))


def test_words_are_replaced_all_at_once():
    data = {"axis1": ["axis1 / axis10", 3, None], "b": {"c": "axis2"}}
    names = {"axis1": "axis2", "axis2": "axis1", "axis10": "d"}
    assert words(data, names) == {"axis2": ["axis2 / d", 3, None], "b": {"c": "axis1"}}
    assert apart({"t1", "t2"}, {"t1", "t3", "n"}) == {"t1": "t4"}
