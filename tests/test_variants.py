"""The second ring, on variants of our upstream: what every patch of the series says to each."""

import ast
import functools
import io
import itertools
import re
import subprocess
import sys
import tokenize
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import REPO, relock
from rendering import SCRIPTS, SERIES, SUPPORT, patches_of, write

from patcher.core import engine, truth
from patcher.core.draft import Draft
from patcher.core.engine import Rendered, render
from patcher.core.single_pass import Printer
from patcher.core.truth import Verdict

DISTRIBUTED, DATAPARALLEL = "distributed.py", "dataparallel.py"
BARRIER = "dist.barrier()\n"
OBSOLETE = "obsolete"


# Edits of a text, of which variants are made


def swap(old: str, new: str, count: int = 1):
    """Put `new` wherever `old` stands, which has to be in so many places."""

    def edit(text: str) -> str:
        assert text.count(old) == count, (old, text.count(old))
        return text.replace(old, new)

    return edit


def rename(old: str, new: str, attributes: bool = True):
    """Rename a variable, a parameter and, unless told otherwise, an attribute; no option or key."""
    pattern = rf"(?<![\w'{'' if attributes else '.'}-]){old}\b"

    def edit(text: str) -> str:
        assert re.search(pattern, text) and not re.search(rf"\b{new}\b", text), (old, new)
        return re.sub(pattern, new, text)

    return edit


def renamed(pairs: str) -> list:
    """Other names for all of these: `old new, old new`."""
    return [rename(*pair.split()) for pair in pairs.split(",")]


def within(function: str, *edits):
    """Edits of one top-level function alone."""

    def edit(text: str) -> str:
        before, start, rest = text.partition(f"\ndef {function}(")
        body, end, after = re.split(r"(\n\n\n(?=\S))", rest, maxsplit=1)
        for change in edits:
            body = change(body)
        return before + start + body + end + after

    return edit


def rewrap(gap):
    """Lay out what stands in brackets: `gap(a, space, b)` goes between two neighbouring tokens."""

    def edit(text: str) -> str:
        starts = [0, *itertools.accumulate(map(len, text.splitlines(keepends=True)))]
        found = tokenize.generate_tokens(io.StringIO(text).readline)
        tokens = [token for token in found if token.type != tokenize.NL]
        parts, at, depth = [], 0, 0
        for a, b in itertools.pairwise(tokens):
            depth += (a.string in ("(", "[", "{")) - (a.string in (")", "]", "}"))
            if depth:
                end, start = (starts[row - 1] + column for row, column in (a.end, b.start))
                parts += [text[at:end], gap(a.string, text[end:start], b.string)]
                at = start
        result = "".join([*parts, text[at:]])
        assert result != text and ast.dump(ast.parse(result)) == ast.dump(ast.parse(text))
        return result

    return edit


def on_one_line(a: str, space: str, b: str) -> str:
    return " " if space and a not in ("(", "[", "{") and b not in (")", "]", "}") else ""


def one_a_line(a: str, space: str, b: str) -> str:
    return "\n        " if a in (",", "(", "[", "{") else space


def shape(name: str, label: str):
    """Another script of ours altogether, that does the same: see tests/shapes/."""
    path = REPO / f"tests/shapes/{name.removesuffix('.py')}_{label}.py.txt"
    return lambda text: path.read_text()


def under_twenty_lines(text: str) -> str:
    return '"""Trains a model.\n' + "\n".join(f"Line {n}." for n in range(2, 20)) + '\n"""\n' + text


class Variant(NamedTuple):
    """An upstream to come: the edits that make it of ours, by file, and what patches say to it.

    `verdicts` has those that are not clean: `OBSOLETE` or, if stale, the reason, or the functions
    that have another number of sites than stated, as (expected, found).  `ours` means that the
    result is the code that the series makes of our own upstream, and `serves` that it serves every
    purpose; if nothing is stale, it compiles and each name in it is defined.  `alike` means that it
    is of a kind that other variants show, too.
    """

    edits: dict
    verdicts: dict = {}
    ours: bool = False
    serves: bool = False
    alike: bool = False


def in_both(*edits) -> dict:
    return dict.fromkeys(SCRIPTS, edits)


LOOP_NAMES = renamed("""
    model net, criterion loss_of, optimizer sgd, progress bar, loss cost, loss_meter costs,
    acc1 right1, acc5 right5, acc1_meter hits1, acc5_meter hits5, train_loader feed,
    val_loader test_feed, train_images trainset, best_acc1 highest, is_best better,
    epoch round_number, i nth""")
MORE_NAMES = renamed("train_sampler shuffled, val_sampler ordered, val_images testset")
DEST_GPU = swap("'--local_rank',\n", "'--local_rank',\n                    dest='gpu',\n")
GPUS_OPTION = "\nparser.add_argument('--gpus', default='0', help='ids')"
GROUP = ("barrier", "init_process_group", "all_reduce", "ReduceOp")


def gpus(value: str):
    return swap("gpus = [0, 1, 2, 3]", f"gpus = {value}")


# The golden table.  What is not in it is clean.

VARIANTS = {
    "local_rank is called gpu": Variant(
        {DISTRIBUTED: [rename("local_rank", "gpu", attributes=False)]}, serves=True, alike=True
    ),
    "args.local_rank is called gpu too, its option as ever": Variant(
        {DISTRIBUTED: [rename("local_rank", "gpu"), DEST_GPU]},
        # What it inserts reads and sets `args.local_rank`, which is no longer there: that crashes.
        {DISTRIBUTED: {"any_launcher": {"<module>": (1, 0)}}},
    ),
    "nprocs is called world_size": Variant(
        {DISTRIBUTED: renamed("nprocs world_size")}, serves=True, alike=True
    ),
    "nprocs is called ngpus_per_node": Variant(
        {DISTRIBUTED: renamed("nprocs ngpus_per_node")}, serves=True, alike=True
    ),
    "models, loaders, meters and all that the loops use have other names": Variant(
        {DISTRIBUTED: [*LOOP_NAMES, *MORE_NAMES], DATAPARALLEL: LOOP_NAMES}, serves=True
    ),
    # The purposes pass `gpus=` and `args=` by name, so here every name is defined, and that is all.
    "args, parser and gpus have other names": Variant(
        {
            DISTRIBUTED: renamed("args opt, parser cli"),
            DATAPARALLEL: renamed("args opt, parser cli, gpus gpu_ids"),
        },
        alike=True,
    ),
    "gpus are called devices": Variant(
        {DATAPARALLEL: renamed("gpus devices")},
        # In that function the name of the module means something else.
        {DATAPARALLEL: {"any_device": "main_worker has a devices of its own"}},
    ),
    "the process group goes by its other name": Variant(
        {
            DISTRIBUTED: [
                swap(f"dist.{name}", f"torch.distributed.{name}", 2 if name == "barrier" else 1)
                for name in GROUP
            ]
        },
        serves=True,
        alike=True,
    ),
    "double quotes, calls on one line and images and targets by those names": Variant(
        {name: [shape(name, "a")] for name in SCRIPTS}, serves=True
    ),
    "formatted strings, positional arguments, models that come back and other names": Variant(
        {name: [shape(name, "b")] for name in SCRIPTS}, serves=True, alike=True
    ),
    "every call on one line": Variant(in_both(rewrap(on_one_line)), ours=True, alike=True),
    "one argument a line": Variant(in_both(rewrap(one_a_line)), ours=True),
    "twenty lines on top": Variant(in_both(under_twenty_lines), ours=True, alike=True),
    "images have another name in validate alone": Variant(
        in_both(within("validate", rename("inputs", "pictures"))), serves=True, alike=True
    ),
    "no barrier in validate": Variant(
        {DISTRIBUTED: [within("validate", swap(" " * 12 + BARRIER, ""))]},
        # One of its eight lines is gone: a human has to say whether the others mean what they did.
        {DISTRIBUTED: {"exact_validation": {"validate": (8, 7)}}},
        alike=True,
    ),
    "no barrier in train and validate": Variant(
        {DISTRIBUTED: [within(name, swap(BARRIER, "pass\n")) for name in ("train", "validate")]},
        {
            DISTRIBUTED: {
                "train_meters": {"train": (8, 7)},
                "exact_validation": {"validate": (8, 7)},
            }
        },
    ),
    "reshape is there": Variant(
        in_both(swap("[:k].view(-1)", "[:k].reshape(-1)")),
        {name: {"reshape_topk": OBSOLETE} for name in SCRIPTS},
        ours=True,
    ),
    "the local rank comes from the environment": Variant(
        {DISTRIBUTED: [swap("default=-1", 'default=int(os.environ.get("LOCAL_RANK", -1))')]},
        {DISTRIBUTED: {"local_rank_from_env": OBSOLETE}},
        ours=True,
    ),
    "the GPUs come from an option": Variant(
        {
            DATAPARALLEL: [
                swap("\n\nbest_acc1", f"{GPUS_OPTION}\n\nbest_acc1"),
                gpus("[int(gpu) for gpu in args.gpus.split(',')]"),
            ]
        },
        {DATAPARALLEL: {"configurable_gpus": OBSOLETE}},
        serves=True,
    ),
    "the GPUs are all there are": Variant(
        {DATAPARALLEL: [gpus("list(range(torch.cuda.device_count()))")]},
        # No list to replace and no option: whether it is still wanted is not for a patch to say.
        {DATAPARALLEL: {"configurable_gpus": {"main": (1, 0)}}},
    ),
}


def each_kind(serves: bool = False, quick: int | None = None) -> list:
    """Every variant, or all that serve.

    Those like another one wait for the thorough run, and of the others all but the first `quick`.
    """
    labels = [label for label, one in VARIANTS.items() if one.serves or not serves]
    first = [label for label in labels if not VARIANTS[label].alike][:quick]
    later = [label for label in labels if label not in first]
    return [*first, *(pytest.param(label, marks=pytest.mark.thorough) for label in later)]


def scripts(label: str) -> dict[str, bytes]:
    """The scripts of a variant that are not ours."""
    made = {}
    for name, edits in VARIANTS[label].edits.items():
        text = functools.reduce(lambda text, edit: edit(text), edits, SCRIPTS[name].decode())
        made[name] = text.encode()
    return made


@functools.cache
def series() -> list:
    return patches_of("standard")


@functools.cache
def whole(name: str, source: bytes):
    """What the whole series makes of a script."""
    return render(name, source, series(), SUPPORT)


def results(label: str) -> dict[str, Rendered]:
    """Both scripts after the series, which has nothing stale on this variant."""
    return {name: whole(name, source) for name, source in {**SCRIPTS, **scripts(label)}.items()}


def alone(name: str, source: bytes) -> list:
    """What each patch by itself says to a script, which is parsed once."""
    printer, outcomes = Printer(), []
    module = engine.parse(name, source, printer)
    for patch in (patch for patch in series() if name in patch.sites):
        after, draft, outcome = truth.judge(
            name, module, module, patch, printer, Draft(source, SUPPORT)
        )
        engine.compile_check(name, printer.bytes(engine.finish(module, after, draft)))
        outcomes.append(outcome)
    return outcomes


def rows(outcomes) -> dict:
    """Outcomes as the table has them."""
    table = {}
    for outcome in outcomes:
        expected, found = outcome.expected, outcome.found
        counts = {f: (expected.get(f, 0), found.get(f, 0)) for f in {**expected, **found}}
        differing = {function: pair for function, pair in counts.items() if pair[0] != pair[1]}
        if outcome.verdict is Verdict.OBSOLETE:
            table[outcome.patch] = OBSOLETE
        elif outcome.verdict is Verdict.STALE:
            row = {} if outcome.refused else differing
            table[outcome.patch] = row or outcome.detail
        else:
            assert not differing
    return table


def is_stale(label: str) -> bool:
    tables = VARIANTS[label].verdicts.values()
    return any(row != OBSOLETE for table in tables for row in table.values())


@pytest.mark.parametrize("label", VARIANTS)
def test_series_says_of_a_variant_what_the_table_says(label):
    judged = {name: whole(name, source) for name, source in scripts(label).items()}
    expected = {name: VARIANTS[label].verdicts.get(name, {}) for name in judged}
    assert {name: rows(result.outcomes) for name, result in judged.items()} == expected
    assert any(result.stale for result in judged.values()) == is_stale(label)


@pytest.mark.parametrize("label", each_kind(quick=3))
def test_each_patch_alone_says_the_same(label):
    for name, source in scripts(label).items():
        assert rows(alone(name, source)) == VARIANTS[label].verdicts.get(name, {})


@pytest.mark.parametrize("label", [label for label, variant in VARIANTS.items() if variant.ours])
def test_result_is_the_code_that_ours_becomes(label):
    for name, result in results(label).items():
        assert code(result.after) == code(whole(name, SCRIPTS[name]).after)


def code(source: bytes) -> str:
    """A script without its layout, comments and docstring."""
    tree = ast.parse(source)
    return ast.dump(ast.Module(tree.body[ast.get_docstring(tree) is not None :], []))


def exchanged(first: str, second: str, *, until: str):
    """Exchange two parts of a text: from the one to the other, and from there to what follows."""

    def edit(text: str) -> str:
        a, b, c = text.index(first), text.index(second), text.index(until, text.index(second))
        assert a < b < c
        return text[:a] + text[b:c] + text[a:b] + text[c:]

    return edit


IMAGES = exchanged("    train_images = ", "    val_images = ", until="    train_sampler = ")
SAMPLERS = exchanged("    train_sampler = ", "    val_sampler = ", until="\n    train_loader = ")
LOADERS = exchanged("    train_loader = ", "    val_loader = ", until="\n    if args.evaluate")


@pytest.mark.parametrize("part", [IMAGES, SAMPLERS, LOADERS], ids=["images", "samplers", "loaders"])
def test_validation_that_is_made_first_is_not_taken_for_training(part):
    source = part(SCRIPTS[DISTRIBUTED].decode()).encode()
    result = render(DISTRIBUTED, source, series(), SUPPORT)
    if not result.stale:  # a refusal is as good
        assert lines_of(result.after) == lines_of(whole(DISTRIBUTED, SCRIPTS[DISTRIBUTED]).after)


def lines_of(source: bytes) -> list[str]:
    """The statements of `main_worker`, in no order."""
    nodes = ast.parse(source).body
    functions = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}
    return sorted(map(ast.unparse, functions["main_worker"].body))


def test_result_under_twenty_lines_is_ours_to_the_byte():
    for name, result in results("twenty lines on top").items():
        ours = whole(name, SCRIPTS[name]).after
        assert result.after == under_twenty_lines(ours.decode()).encode()


@pytest.mark.parametrize("label", each_kind(serves=True, quick=1))
def test_result_serves_every_purpose(label, tmp_path):
    pytest.importorskip("torch")
    from builds import missed

    assert missed(results(label), SERIES["standard"], tmp_path) == set()


def test_every_name_in_a_result_is_defined_and_only_once(tmp_path):
    for number, label in enumerate(label for label in VARIANTS if not is_stale(label)):
        (tmp_path / str(number)).mkdir()
        write(tmp_path / str(number), results(label))
    ruff = [Path(sys.executable).parent / "ruff", "check", "--isolated", "--no-cache"]
    command = [*ruff, "--output-format", "concise", "--select", "F821,F811", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "All checks passed!\n")


def test_script_that_no_patch_names_stays_as_it_is(project, patcher):
    source = SCRIPTS[DISTRIBUTED]  # with all the sites that it could have
    result = render("evaluate.py", source, series(), SUPPORT)
    assert (result.after, result.outcomes) == (source, ())
    (project / "upstream" / "evaluate.py").write_bytes(source)
    relock(project)
    assert patcher("apply", "--series", "guide").code == 0
    first, built = (project / "build" / "evaluate.py").read_bytes().split(b"\n", 1)
    assert first.startswith(b"# @generated ") and built == source


def test_continue_in_the_training_loop_is_a_refusal_that_says_so():
    text = SCRIPTS[DISTRIBUTED].decode()
    train = text.index("def train(")
    line = "        count = labels.size(0)\n"
    at = text.index(line, train) + len(line)
    source = text[:at] + "        if count == 1:\n            continue\n" + text[at:]
    outcomes = render(DISTRIBUTED, source.encode(), series(), SUPPORT).outcomes
    why = "train has no place last in the loop, or a `continue` skips it"
    refused = {outcome.patch: outcome.detail for outcome in outcomes if outcome.refused}
    assert refused == dict.fromkeys(("finite_loss", "saved_steps", "profiled_steps"), why)
