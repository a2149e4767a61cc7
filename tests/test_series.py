"""The second ring: the series on `upstream/`."""

import ast
import itertools
import random
import runpy
import subprocess
import sys

import libcst as cst
import pytest
from conftest import REPO
from goldens import BASE, golden, on_top, reviewed
from rendering import (
    NAMES,
    SCRIPTS,
    SERIES,
    SUPPORT,
    passed,
    patches_of,
    rendered,
    results_in,
    results_of,
    write,
)

from patcher.core.draft import Draft
from patcher.core.engine import render
from patcher.core.single_pass import Printer, parse
from patcher.core.truth import Verdict
from patcher.tree.syntax import walk

each_series = pytest.mark.parametrize("series", SERIES)
# What is true of `vit`, which has all that `fast` has, is slow to see for both.
some_series = pytest.mark.parametrize(
    "series", ["guide", "standard", pytest.param("fast", marks=pytest.mark.thorough), "vit"]
)


def built(series: str) -> dict[str, bytes]:
    """The scripts after a whole series."""
    return {name: result.after for name, result in results_in(series).items()}


def changed_lines(diff: str, sign: str) -> list[str]:
    lines = [line for line in diff.split("\n") if line.startswith(sign)]
    return [line[1:] for line in lines if not line.startswith(sign * 3)]


@each_series
def test_every_patch_is_clean_on_every_file_that_it_names(series):
    judged = {(o.patch, o.file) for result in results_in(series).values() for o in result.outcomes}
    assert judged == {(patch.slug(), file) for patch in patches_of(series) for file in patch.sites}


@each_series
def test_diff_is_the_golden_one(project, patcher, series):
    patcher("apply", "--series", series)
    result = patcher("diff", "--series", series)
    shown = on_top(series) if series in BASE else reviewed(result.stdout)
    assert shown == golden(series).read_bytes(), "`make golden` renews it"
    modules = set().union(*(result.support for result in results_in(series).values()))
    assert result.stdout.count(b"--- /dev/null\n") == len(modules)
    assert (result.code, result.stderr) == (0, b"")


def test_guide_removes_exactly_the_four_lines_that_the_vendor_edits():
    assert changed_lines(golden("guide").read_text(), "-") == [
        "    gpus = [0, 1, 2, 3]",
        "            correct_k = correct[:k].view(-1).float().sum(0, keepdim=True)",
        "                    default=-1,",
        "            correct_k = correct[:k].view(-1).float().sum(0, keepdim=True)",
    ]


def test_guide_with_a_list_of_gpus_is_the_vendors_edit_word_for_word(project, patcher):
    setting = ("--series", "guide", "--set", "configurable_gpus.gpus=0,1,2,3,4,5,6,7")
    patcher("apply", *setting)
    diff = patcher("diff", *setting).out
    added = [line for line in changed_lines(diff, "+") if "@generated" not in line]
    assert len(changed_lines(diff, "-")) == 4
    assert added == [
        "    gpus = [0, 1, 2, 3, 4, 5, 6, 7]",
        "            correct_k = correct[:k].reshape(-1).float().sum(0, keepdim=True)",
        '                    default=int(os.environ["LOCAL_RANK"]),',
        "            correct_k = correct[:k].reshape(-1).float().sum(0, keepdim=True)",
    ]
    assert diff.count("+# @generated") == 2


@each_series
def test_series_finds_nothing_to_do_in_its_own_output(series):
    for name, source in built(series).items():
        assert passed(name, source, patches_of(series)) == (source, 0)


@each_series
def test_series_is_obsolete_on_its_own_output(series):
    for name, source in built(series).items():
        result = render(name, source, patches_of(series), SUPPORT)
        assert {outcome.verdict for outcome in result.outcomes} == {Verdict.OBSOLETE}
        assert result.after == source


# Orders and parts


def arranged(patches) -> list:
    """These patches in this order, but each after those that it has to come after."""
    found, rest = [], list(patches)
    while rest:
        waiting = {patch.slug() for patch in rest}
        found.append(next(patch for patch in rest if not waiting & {*patch.after, *patch.needs}))
        rest.remove(found[-1])
    return found


def swapped(patches, places) -> list:
    """The patches at these places change with their right neighbours."""
    order = list(patches)
    for i in places:
        order[i : i + 2] = order[i : i + 2][::-1]
    return order


def at_random(patches, count: int) -> list:
    dice = random.Random(count)
    return [dice.sample(patches, len(patches)) for _ in range(count)]


def few_orders(patches) -> list:
    """All orders of a few patches; of many, all neighbours swapped, the reverse, some at random."""
    if len(patches) < 5:
        return list(itertools.permutations(patches))
    neighbours = [swapped(patches, range(first, len(patches) - 1, 2)) for first in (0, 1)]
    return [*neighbours, patches[::-1], *at_random(patches, 1)]


def many_orders(patches) -> list:
    """Two neighbours swapped at a time, and many at random."""
    return [swapped(patches, [i]) for i in range(len(patches) - 1)] + at_random(patches, 20)


@some_series
@pytest.mark.parametrize(
    "orders", [few_orders, pytest.param(many_orders, marks=pytest.mark.thorough)]
)
def test_every_permitted_order_gives_the_same_bytes(series, orders):
    for order in map(arranged, orders(patches_of(series))):
        assert rendered(order) == built(series), [patch.slug() for patch in order]


def with_needed(part, patches) -> list:
    """A part of a series, and what it needs of it."""
    names = {patch.slug() for patch in part}
    for patch in reversed(patches):
        if patch.slug() in names:
            names |= set(patch.needs)
    return [patch for patch in patches if patch.slug() in names]


def few_parts(patches) -> list:
    """All subsets of a few patches; of many, all, and half of them at random."""
    if len(patches) < 5:
        sizes = range(len(patches) + 1)
        return [part for size in sizes for part in itertools.combinations(patches, size)]
    dice = random.Random(0)
    return [patches, [patch for patch in patches if dice.random() < 0.5]]


def single_parts(patches) -> list:
    return [[patch] for patch in patches]


@some_series
@pytest.mark.parametrize(
    "parts", [few_parts, pytest.param(single_parts, marks=pytest.mark.thorough)]
)
def test_series_on_top_of_any_part_of_it_ends_in_the_same_bytes(series, parts):
    """Before the engine has finished the part; in a built script its lines are the script's own."""
    patches = patches_of(series)
    for part in (with_needed(part, patches) for part in parts(patches)):
        for name, source in SCRIPTS.items():
            result, _ = passed(name, source, [*part, *patches])
            assert result == built(series)[name], [patch.slug() for patch in part]


@each_series
def test_twenty_lines_on_top_change_no_edit(series):
    top = b"".join(b"# line %d\n" % i for i in range(20))
    shifted = rendered(patches_of(series), {name: top + text for name, text in SCRIPTS.items()})
    assert shifted == {name: top + text for name, text in built(series).items()}


# What is in a built script


def imports(source: bytes) -> dict[str, str]:
    """Every import as text, and the name that it binds; upstream has some that it never reads."""
    nodes = [n for n in ast.walk(ast.parse(source)) if isinstance(n, (ast.Import, ast.ImportFrom))]
    names = {ast.unparse(node): node.names[0] for node in nodes}
    return {text: name.asname or name.name.split(".")[0] for text, name in names.items()}


def names_in(source: bytes) -> tuple[set[str], set[str]]:
    """The names that a script binds, and those that it reads."""
    bound, read = set(imports(source).values()), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
    return bound, read


def assert_names_are_right(results, folder) -> None:
    """What upstream uses and the result does not is gone, no more; each name is defined once."""
    for result in results.values():
        (_, were_read), (bound, read) = names_in(result.before), names_in(result.after)
        unused = were_read - read
        assert not bound & unused, "nothing uses these any more"
        after = imports(result.after)
        gone = {name for text, name in imports(result.before).items() if text not in after}
        assert gone <= unused
    check = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache"]
    check += ["--output-format", "concise", "--select", "F821,F811,F841", str(folder)]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.stdout == "All checks passed!\n"


@each_series
def test_names_in_a_built_script_are_right(series, tmp_path):
    """What a patch inserts brings the imports and functions that it uses."""
    write(tmp_path, results_in(series))
    assert_names_are_right(results_in(series), tmp_path)


def signatures(source: bytes) -> dict[str, str]:
    """The parameters of each function and method by its name, in the order of the script."""
    found = {}
    for node in ast.parse(source).body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        scope = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        functions = [inner for inner in inside if isinstance(inner, ast.FunctionDef)]
        found |= {scope + inner.name: ast.unparse(inner.args) for inner in functions}
    return found


@each_series
def test_every_function_that_is_used_stays_in_its_place(series):
    """The guide's keep their parameters too; where others changed, the golden diff shows it."""
    for name, source in SCRIPTS.items():
        before, after = signatures(source), signatures(built(series)[name])
        _, read = names_in(built(series)[name])
        stays = [function for function in before if "." in function or function in read]
        assert [function for function in after if function in before] == stays
        if series == "guide":
            assert {function: after[function] for function in before} == before


@each_series
def test_built_script_is_short(series):
    for name, source in built(series).items():
        lines = source.decode().splitlines()
        assert [line for line in lines if len(line) > 100] == [], name
        assert len(lines) <= 450, f"{name}: what is long is a function in patches/support/"


@pytest.mark.parametrize("module", SUPPORT)
def test_support_module_is_short_and_some_script_reaches_it(module):
    assert SUPPORT[module].count(b"\n") <= 200
    results = [result for series in SERIES for result in results_in(series).values()]
    assert any(module in result.support for result in results)


@pytest.mark.parametrize("name", SCRIPTS)
def test_upstream_survives_parsing_and_printing(name):
    printer = Printer()
    assert printer.bytes(parse(name, SCRIPTS[name], printer)) == SCRIPTS[name]


@pytest.fixture
def show_help(tmp_path, monkeypatch, capsys):
    """Runs a built script with --help as a main program, here, where torch is imported already."""
    pytest.importorskip("torch")
    from builds import forget_support

    def show(series: str, name: str) -> str:
        write(tmp_path, results_in(series))
        monkeypatch.setattr("sys.argv", [name, "--help"])
        monkeypatch.syspath_prepend(tmp_path)
        forget_support()
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(tmp_path / name), run_name="__main__")
        out, err = capsys.readouterr()
        assert (ended.value.code, err) == (0, "")
        return out

    yield show
    forget_support()


@pytest.mark.parametrize("name", SCRIPTS)
def test_standard_scripts_show_their_help_without_any_environment(name, show_help, monkeypatch):
    monkeypatch.setattr("os.environ", {"COLUMNS": "100"})
    out = show_help("standard", name)
    assert f"usage: {name}" in out
    assert ("--gpus IDS" in out) == (name == "dataparallel.py")


def test_guides_script_needs_local_rank_even_for_its_help(show_help, monkeypatch):
    """As the vendor's own edit does: `standard` is what mends it."""
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with pytest.raises(KeyError, match="LOCAL_RANK"):
        show_help("guide", "distributed.py")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert "--local_rank" in show_help("guide", "distributed.py")


# Leave one out: each patch has a file in tests/patches, with a function that fails without it

PROOF = """\
{file} is missing, or has no function `serves(distributed, dataparallel, monkeypatch)` that fails \
if {name} is left out: `python -m patcher new` writes its start, docs/writing-a-patch.md says how"""
NEW = {  # in which series a patch comes first
    series: [name for name in names if name not in SERIES.get(BASE.get(series), ())]
    for series, names in SERIES.items()
}
SINGLE = [(series, [name]) for series, names in NEW.items() for name in names]
# Some at a time, that are not beside each other: of each, its purpose has to be missed.
TOGETHER = [
    (series, names[at :: 1 + len(names) // 6])
    for series, names in NEW.items()
    for at in range(1 + len(names) // 6)
]


@pytest.mark.parametrize("name", NAMES)
def test_every_patch_has_its_proof(name):
    path = REPO / f"tests/patches/test_{name}.py"
    assert path.is_file() and "\ndef serves(" in path.read_text(), PROOF.format(
        file=path.relative_to(REPO), name=name
    )


def test_every_proof_is_of_a_patch_in_a_series():
    proofs = {path.stem for path in (REPO / "tests/patches").glob("test_*.py")}
    assert proofs == {f"test_{name}" for name in NAMES}


def label(value) -> str:
    return value if isinstance(value, str) else "-".join(value)


def without(series: str, names: list[str]) -> list:
    """A series without some patches, and without those that need them."""
    gone, kept = {*names}, []
    for patch in patches_of(series):
        if patch.slug() in gone or gone & set(patch.needs):
            gone.add(patch.slug())
        else:
            kept.append(patch)
    return kept


def assert_misses(series: str, names: list[str], others: slice, folder):
    """Without `names`, their purposes are missed, and of the others' none that is tried."""
    pytest.importorskip("torch")
    from builds import missed

    patches = without(series, names)
    kept = [patch.slug() for patch in patches]
    gone = set(SERIES[series]) - set(kept)
    results = results_of(patches)
    assert missed(results, [*gone, *kept[others]], folder) == gone
    assert_names_are_right(results, folder)


@pytest.mark.parametrize("series, names", TOGETHER, ids=label)
def test_without_some_patches_their_purposes_are_missed(series, names, tmp_path, capfd):
    """Of the others every fifth is tried."""
    assert_misses(series, names, slice(None, None, 5), tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("series, names", SINGLE, ids=label)
def test_without_one_patch_exactly_its_purpose_is_missed(series, names, tmp_path, capfd):
    assert_misses(series, names, slice(None), tmp_path)


@pytest.mark.parametrize(
    "series", ["guide", pytest.param("fast", marks=pytest.mark.thorough), "vit"]
)
def test_series_serves_every_purpose(series, tmp_path, capfd):
    """What the default series serves, tests/patches shows; `vit` has all that `fast` has."""
    pytest.importorskip("torch")
    from builds import missed

    assert missed(results_in(series), SERIES[series], tmp_path) == set()


# The engine's walk


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_pass_makes_what_libcsts_own_visit_makes(name):
    """Of the script as it is, and as the whole series makes it, where there are other nodes."""
    for source in (SCRIPTS[name], built("standard")[name]):
        module, draft = parse(name, source, Printer()), Draft(source, SUPPORT)
        for patch in (patch for patch in patches_of("standard") if name in patch.sites):
            for statement in module.body:
                ours, theirs = patch.fresh(), patch.fresh()
                for one in (ours, theirs):
                    one.module, one.text, one.draft = module, module.code_for_node, draft.copy()
                result, visited = walk(statement, ours), statement.visit(theirs)
                # LibCST takes the blank line above a removed line with it.
                assert lines_of(module, result) == lines_of(module, visited)
                assert [f for f, _ in ours.hits] == [f for f, _ in theirs.hits]
                assert ours.already_done == theirs.already_done
                assert ours.hits or result is statement


def lines_of(module, result) -> list[str]:
    """The lines of what a statement has become, without blank ones."""
    parts = result if isinstance(result, cst.FlattenSentinel) else [result]
    return [line for line in module.with_changes(body=parts).code.split("\n") if line.strip()]
