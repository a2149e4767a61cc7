"""The second ring: the series on `upstream/`."""

import argparse
import ast
import collections
import contextlib
import functools
import inspect
import io
import itertools
import operator
import os
import random
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import libcst as cst
import pytest
from conftest import REPO, environment, load

from patcher.build.project import Project, Request
from patcher.core.draft import Draft
from patcher.core.engine import Printer, Rendered, Verdict, apply_once, finish, parse, render
from patcher.tree.syntax import walk

PROJECT = Project(REPO)
SERIES = list(PROJECT.all_series())
SCRIPTS = {path.name: path.read_bytes() for path in sorted((REPO / "upstream").glob("*.py"))}
NAMES = list(dict.fromkeys(name for series in PROJECT.all_series().values() for name in series))
SUPPORT = PROJECT.support()


def patches_of(series, *sets) -> list:
    return PROJECT.patches_of(Request(series, sets))


def results_of(patches, scripts=SCRIPTS) -> dict[str, Rendered]:
    """What `patches` make of the scripts; all of them have to be CLEAN."""
    results = {name: render(name, source, patches, SUPPORT) for name, source in scripts.items()}
    for outcome in (outcome for result in results.values() for outcome in result.outcomes):
        assert outcome.verdict is Verdict.CLEAN, outcome
    return results


def rendered(patches, scripts=SCRIPTS) -> dict[str, bytes]:
    """The scripts after `patches`, all of which have to be CLEAN."""
    return {name: result.after for name, result in results_of(patches, scripts).items()}


def passed(name: str, source: bytes, patches) -> tuple[bytes, int]:
    """A script after one pass of each patch that names it, whatever that finds, and the hits."""
    printer, hits, draft = Printer(), 0, Draft(source, SUPPORT)
    pristine = module = parse(name, source, printer)
    for patch in (patch for patch in patches if name in patch.sites):
        run = patch.fresh()
        run.draft = draft  # as in the engine: patches know what those before them have asked for
        module = apply_once(module, run, printer)
        hits += len(run.hits)
    return printer.bytes(finish(pristine, module, draft)), hits


def changed_lines(diff: str, sign: str) -> list[str]:
    return [
        line[1:]
        for line in diff.split("\n")
        if line.startswith(sign) and not line.startswith(sign * 3)
    ]


@pytest.mark.parametrize("series", SERIES)
def test_every_patch_is_clean_on_every_file_that_it_names(series):
    patches = patches_of(series)
    judged = {(o.patch, o.file) for result in results_of(patches).values() for o in result.outcomes}
    assert judged == {(patch.slug(), file) for patch in patches for file in patch.sites}


@pytest.mark.parametrize("series", SERIES)
def test_diff_is_the_golden_one(project, patcher, series):
    patcher("apply", "--series", series)
    result = patcher("diff", "--series", series)
    scripts, _, modules = result.stdout.partition(
        b"--- /dev/null\n"
    )  # the modules are copies of patches/support/
    golden = (REPO / f"tests/golden/{series}.diff").read_bytes()
    assert re.sub(rb"build [0-9a-f]{12}: edit", b"build ID: edit", scripts) == golden, (
        "renew it with `make golden`"
    )
    assert (modules != b"", result.code, result.stderr) == (series == "standard", 0, b"")


def test_guide_removes_exactly_the_four_lines_that_the_vendor_edits():
    diff = (REPO / "tests/golden/guide.diff").read_text()
    assert changed_lines(diff, "-") == [
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


@pytest.mark.parametrize("series", SERIES)
def test_series_finds_nothing_to_do_in_its_own_output(series):
    patches = patches_of(series)
    for name, source in rendered(patches).items():
        assert passed(name, source, patches) == (source, 0)


@pytest.mark.parametrize("series", SERIES)
def test_series_is_obsolete_on_its_own_output(series):
    patches = patches_of(series)
    for name, source in rendered(patches).items():
        result = render(name, source, patches, SUPPORT)
        assert {outcome.verdict for outcome in result.outcomes} == {Verdict.OBSOLETE}
        assert result.after == source


def arranged(patches) -> list:
    """These patches in this order, but each behind those that it has to come after."""
    found, rest = [], list(patches)
    while rest:
        waiting = {patch.slug() for patch in rest}
        found.append(next(patch for patch in rest if not waiting & {*patch.after, *patch.needs}))
        rest.remove(found[-1])
    return found


def orders(patches) -> list:
    """All orders of a few patches; of many, each pair of neighbours swapped, the reverse, and some at random."""
    if len(patches) < 5:
        return [
            order
            for order in map(list, itertools.permutations(patches))
            if order == arranged(order)
        ]
    swapped = [
        [*patches[:i], patches[i + 1], patches[i], *patches[i + 2 :]]
        for i in range(len(patches) - 1)
    ]
    dice = random.Random(0)
    mixed = [
        arranged(order)
        for order in (patches[::-1], *(dice.sample(patches, len(patches)) for _ in range(5)))
    ]
    return [order for order in swapped if order == arranged(order)] + mixed


@pytest.mark.parametrize("series", SERIES)
def test_every_permitted_order_gives_the_same_bytes(series):
    patches = patches_of(series)
    golden = rendered(patches)
    found = orders(patches)
    assert len(found) > 5
    for order in found:
        assert rendered(order) == golden, [patch.slug() for patch in order]


def with_needed(part, patches) -> list:
    """A part of a series, and what it needs of it."""
    names = {patch.slug() for patch in part}
    for patch in reversed(patches):
        if patch.slug() in names:
            names |= set(patch.needs)
    return [patch for patch in patches if patch.slug() in names]


def parts(patches) -> list:
    """All subsets of a few patches; of many, none, all, each one, and some at random."""
    if len(patches) < 5:
        return [
            part
            for size in range(len(patches) + 1)
            for part in itertools.combinations(patches, size)
        ]
    dice = random.Random(0)
    chosen = [
        [patch for patch in patches if dice.random() < share] for share in (0.2, 0.4, 0.6, 0.8)
    ]
    return [
        with_needed(part, patches)
        for part in ([], patches, *([patch] for patch in patches), *chosen)
    ]


@pytest.mark.parametrize("series", SERIES)
def test_series_on_top_of_any_part_of_it_ends_in_the_same_bytes(series):
    # Before the engine has finished the part: there patches know which lines others have put to a place, and
    # join them in their order.  In a script that is built already, the same lines are the script's.
    patches = patches_of(series)
    golden = rendered(patches)
    for part in parts(patches):
        for name, source in SCRIPTS.items():
            assert passed(name, source, [*part, *patches])[0] == golden[name], [
                patch.slug() for patch in part
            ]


@pytest.mark.parametrize("series", SERIES)
def test_twenty_lines_on_top_change_no_edit(series):
    top = b"".join(b"# line %d\n" % i for i in range(20))
    golden = rendered(patches_of(series))
    shifted = rendered(patches_of(series), {name: top + source for name, source in SCRIPTS.items()})
    assert shifted == {name: top + source for name, source in golden.items()}


GONE = {  # what upstream imports and no longer uses, once all patches of the series have been there
    ("standard", "distributed.py"): [
        "import shutil",
        "import warnings",
        "import torch.distributed as dist",
    ],
    ("standard", "dataparallel.py"): ["import shutil", "import warnings"],
}


@pytest.mark.parametrize("series", SERIES)
def test_output_compiles_and_loses_only_imports_that_have_become_unused(series):
    after = rendered(patches_of(series))
    for name, source in SCRIPTS.items():
        compile(after[name], name, "exec")
        kept = [line for line in imports(after[name]) if line in imports(source)]
        assert kept == [
            line for line in imports(source) if line not in GONE.get((series, name), [])
        ]
        assert all(line in imports(source) for line in GONE.get((series, name), []))


def imports(source: bytes) -> list[str]:
    """Every import as text: upstream has some that look unused, and are not to go."""
    return [
        ast.unparse(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.Import, ast.ImportFrom))
    ]


# Parameters of a built script where they differ from upstream's; None for a function that is gone.
SIGNATURES = {
    "distributed.py": {
        "main_worker": "args",
        "train": "train_loader, model, criterion, optimizer, epoch, device, run, args",
        "validate": "val_loader, model, criterion, device, run, args",
        "reduce_mean": None,
    },
    "dataparallel.py": {
        "train": "train_loader, model, criterion, optimizer, epoch, device, run, args",
        "validate": "val_loader, model, criterion, device, run, args",
    },
}


def test_standard_keeps_every_function_in_its_place_and_changes_the_documented_parameters():
    after = rendered(patches_of("standard"))
    for name, source in SCRIPTS.items():
        expected = {**signatures(source), **SIGNATURES[name]}
        assert list(signatures(after[name]).items()) == [
            pair for pair in expected.items() if pair[1] is not None
        ]
        assert all(
            signatures(source)[function] != new for function, new in SIGNATURES[name].items()
        )


def test_guide_keeps_every_function_with_its_signature():
    after = rendered(patches_of("guide"))
    for name, source in SCRIPTS.items():
        kept = [
            pair for pair in signatures(after[name]).items() if pair in signatures(source).items()
        ]
        assert kept == list(signatures(source).items())


def signatures(source: bytes) -> dict[str, str]:
    """The parameters of each function and method by its name, in the order of the script."""
    functions = {}
    for node in ast.parse(source).body:
        for inner in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(inner, ast.FunctionDef):
                name = f"{node.name}.{inner.name}" if isinstance(node, ast.ClassDef) else inner.name
                functions[name] = ast.unparse(inner.args)
    return functions


def test_standard_is_no_longer_than_it_has_to_be():
    results = results_of(patches_of("standard"))
    texts = {name: result.after.decode() for name, result in results.items()}
    for text in texts.values():
        assert [line for line in text.splitlines() if len(line) > 100] == []
    assert texts["distributed.py"].count("\n") <= 450
    assert texts["dataparallel.py"].count("\n") <= 430
    reached = {module for result in results.values() for module in result.support}
    assert reached == set(SUPPORT)  # nothing is there for nobody
    texts |= {module: SUPPORT[module].decode() for module in reached}
    # 2,510 before the folder had one owner, the ranks compared notes, and all stops went one way.
    assert sum(text.count("\n") for text in texts.values()) < 3500


# What upstream has and `standard` has no use for, and the patches without any of which it is used again.
DEAD = {
    "distributed.py": {
        "def reduce_mean(": ["train_meters", "exact_validation"],
        "nprocs": ["train_meters", "exact_validation", "node_batch"],
        "best_acc1 = 0": ["resume"],
        "def main_worker(local_rank,": ["any_device"],
        "val_sampler.set_epoch(": ["val_sampler"],
        "import shutil": ["whole_files"],
        "import warnings": ["printed_warnings"],
    },
    "dataparallel.py": {
        "best_acc1 = 0": ["resume"],
        "global best_acc1": ["resume"],
        "import shutil": ["whole_files"],
        "import warnings": ["printed_warnings"],
    },
}


@pytest.mark.parametrize("name", DEAD)
def test_nothing_dead_is_in_standard_and_it_comes_back_with_its_use(name):
    after = rendered(patches_of("standard"))[name].decode()
    for text, users in DEAD[name].items():
        assert text in SCRIPTS[name].decode() and text not in after, text
        for user in users:
            assert text in results_without("standard", user)[name].after.decode(), (text, user)


def without(series: str, name: str) -> list:
    """A series without a patch, and without those that need it."""
    gone, kept = {name}, []
    for patch in patches_of(series):
        if patch.slug() in gone or gone & set(patch.needs):
            gone.add(patch.slug())
        else:
            kept.append(patch)
    return kept


@functools.cache
def results_without(series: str, name: str) -> dict[str, Rendered]:
    return results_of(without(series, name))


@pytest.mark.parametrize("name", SCRIPTS)
def test_upstream_survives_parsing_and_printing(name):
    printer = Printer()
    assert printer.bytes(parse(name, SCRIPTS[name], printer)) == SCRIPTS[name]


# The built scripts themselves


def write(folder: Path, results: dict[str, Rendered]) -> None:
    """The scripts, and `support/` with the modules that they reach."""
    for name, result in results.items():
        (folder / name).write_bytes(result.after)
        for module in result.support:
            (folder / "support").mkdir(exist_ok=True)
            (folder / "support" / f"{module}.py").write_bytes(SUPPORT[module])


@pytest.fixture(scope="module")
def helps(tmp_path_factory):
    """`--help` of the standard scripts: (stdout, stderr, status) by name.  At once: most of it is importing torch."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("standard")
    environ = environment(LOCAL_RANK=None, PYTHONPATH=None, COLUMNS="100")
    runs = {}
    write(folder, results_of(patches_of("standard")))
    for name in SCRIPTS:
        runs[name] = subprocess.Popen(
            [sys.executable, name, "--help"],
            cwd=folder,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    return {name: (*run.communicate(timeout=120), run.returncode) for name, run in runs.items()}


@pytest.mark.parametrize("name", SCRIPTS)
def test_standard_scripts_show_their_help_without_any_environment(helps, name):
    out, err, code = helps[name]
    assert (code, err) == (0, "")
    assert f"usage: {name}" in out
    assert ("--gpus IDS" in out) == (name == "dataparallel.py")


@pytest.fixture
def guides_help(tmp_path, monkeypatch):
    """Runs the guide's `distributed.py --help` as a main program, in this process, which has imported torch already."""
    pytest.importorskip("torch")
    (tmp_path / "distributed.py").write_bytes(rendered(patches_of("guide"))["distributed.py"])
    monkeypatch.setattr("sys.argv", ["distributed.py", "--help"])
    return lambda: runpy.run_path(str(tmp_path / "distributed.py"), run_name="__main__")


def test_guides_script_needs_local_rank_even_for_its_help(guides_help, monkeypatch):
    # As the vendor's own edit does: `standard` is what mends it.
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with pytest.raises(KeyError, match="LOCAL_RANK"):
        guides_help()


def test_guides_script_shows_its_help_with_local_rank(guides_help, monkeypatch, capsys):
    monkeypatch.setenv("LOCAL_RANK", "3")
    with pytest.raises(SystemExit) as ended:
        guides_help()
    assert ended.value.code == 0
    assert "--local_rank" in capsys.readouterr().out


# Leave one out: what each patch is for


def takes_rank_from_environment(distributed, dataparallel, monkeypatch):
    assert distributed.parser.get_default("local_rank") == 3


def counts_top_k(distributed, dataparallel, monkeypatch):
    import torch

    torch.manual_seed(0)
    output, target = torch.randn(8, 1000), torch.randint(0, 1000, (8,))
    target[::2] = output[::2].argsort(descending=True)[
        :, 2
    ]  # half of them hits at k = 5, none at k = 1
    target[0] = output[0].argmax()
    plain = [
        100
        / 8
        * sum(
            int(t) in sorted(range(1000), key=row.tolist().__getitem__)[-k:]
            for row, t in zip(output, target)
        )
        for k in (1, 5)
    ]
    for module in (distributed, dataparallel):
        acc1, acc5 = module.accuracy(output, target, topk=(1, 5))
        assert [acc1.item(), acc5.item()] == plain
        assert acc1.item() < acc5.item()


def data_set(train="abc", val="abc") -> str:
    """A data set of these classes, with a file in each that only looks like an image."""
    folder = Path(tempfile.mkdtemp())
    for name in [f"train/{name}" for name in train] + [f"val/{name}" for name in val]:
        (folder / name).mkdir(parents=True)
        (folder / name / "0.jpg").touch()
    return str(folder)


def call(function, *first, **named):
    """Call a function of a script with what comes first, the parsed arguments last, and between them what it takes.

    Which parameters there are between them, is a matter of the patches.
    """
    between = [*inspect.signature(function).parameters][len(first) : -1]
    return function(*first, *(named.get(name, 0) for name in between), named["args"])


def arguments_of(given, named):
    """The parsed arguments in a call of `main_worker`."""
    return named["args"] if named else given[-1]


def uses_the_gpus_asked_for(distributed, dataparallel, monkeypatch):
    called = []
    monkeypatch.setattr("sys.argv", ["dataparallel.py", "--gpus", "1,2", "--data", data_set()])
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    monkeypatch.setattr(
        dataparallel, "main_worker", lambda **arguments: called.append(arguments["gpus"])
    )
    dataparallel.main()
    assert called == [[1, 2]]


def alone(monkeypatch):
    """Let nothing wait for ranks that are not there: they have what this one has."""
    monkeypatch.setattr("torch.distributed.broadcast_object_list", lambda objects, source: None)
    monkeypatch.setattr(
        "torch.distributed.all_gather_object",
        lambda parts, part: operator.setitem(parts, slice(None), [part] * len(parts)),
    )
    monkeypatch.setattr("torch.distributed.all_reduce", lambda *args, **kwargs: None)
    monkeypatch.setattr("torch.distributed.barrier", lambda: None)
    if "support.stop" in sys.modules:
        monkeypatch.setattr("support.stop.watch", lambda timeout: None)
    if "support.owner" in sys.modules:
        monkeypatch.setattr("support.owner.take", lambda: None)
        monkeypatch.setattr("support.owner.name_run", lambda run: None)


def loaders(distributed, monkeypatch, images, batch_size, rank=0, world=1, saved=None):
    """The loaders, for training and for validation, that rank `rank` of `world` on one node makes of so many images.

    What it saves after an epoch is appended to `saved`.
    """
    import torch

    class Images(list):
        """A folder of images of no class."""

        root, classes, class_to_idx, samples, targets = "", [], {}, [], []

    for name, value in (
        ("RANK", rank),
        ("WORLD_SIZE", world),
        ("LOCAL_RANK", rank),
        ("LOCAL_WORLD_SIZE", world),
    ):
        monkeypatch.setenv(name, str(value))
    alone(monkeypatch)
    monkeypatch.setattr(
        "sys.argv", ["distributed.py", "--epochs", "1", "--workers", "0", "-b", str(batch_size)]
    )
    monkeypatch.setattr("torch.distributed.init_process_group", lambda *args, **kwargs: None)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda *group: world)
    monkeypatch.setattr("torch.distributed.get_rank", lambda *group: rank)
    monkeypatch.setattr("torch.nn.parallel.DistributedDataParallel", Wrapped)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("torch.cuda.set_device", lambda device: None)
    monkeypatch.setattr("torch.nn.Module.cuda", lambda self, device=None: self)
    monkeypatch.setattr(
        "torchvision.models.get_model", lambda *args, **kwargs: torch.nn.Linear(1, 1)
    )
    monkeypatch.setitem(
        distributed.models.__dict__, "resnet18", lambda **kwargs: torch.nn.Linear(1, 1)
    )
    monkeypatch.setattr(
        distributed.datasets, "ImageFolder", lambda *args, **kwargs: Images(range(images))
    )
    monkeypatch.setattr(
        distributed, "save_checkpoint", lambda *args: saved is not None and saved.append(args)
    )
    seen = []
    monkeypatch.setattr(distributed, "train", lambda loader, *args: seen.append(loader))
    monkeypatch.setattr(distributed, "validate", lambda loader, *args: seen.append(loader) or 0.0)
    args = distributed.parser.parse_args()
    args.nprocs, args.local_rank = 8, rank  # as upstream has it
    call(distributed.main_worker, args=args, local_rank=rank, nprocs=8)
    return seen


def takes_the_batch_that_the_node_was_given(distributed, dataparallel, monkeypatch):
    train_loader, _ = loaders(distributed, monkeypatch, images=24, batch_size=12, rank=1, world=3)
    assert train_loader.batch_size == 4
    with pytest.raises(SystemExit):
        loaders(distributed, monkeypatch, images=24, batch_size=256, rank=1, world=3)


def validates_every_image_once(distributed, dataparallel, monkeypatch):
    for images, world in ((5, 4), (3, 8), (9, 1)):
        slices = []
        for rank in range(world):
            with monkeypatch.context() as context:
                _, val_loader = loaders(distributed, context, images, 8 * world, rank, world)
                slices.append(list(val_loader.sampler))
        assert sorted(sum(slices, [])) == list(range(images))
        assert slices == [sorted(indices) for indices in slices]


def finds_its_rank(distributed, dataparallel, monkeypatch):
    called = []
    monkeypatch.setattr(
        "sys.argv", ["distributed.py", "--data", data_set(), "--local-rank", "0"]
    )  # as some wrappers pass it to all
    monkeypatch.setattr(
        distributed, "main_worker", lambda *given: called.append(given[-1].local_rank)
    )
    job = {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "1",
    }
    for name, value in job.items():
        monkeypatch.setenv(name, value)
    distributed.main()
    assert called == [1]
    monkeypatch.setattr("sys.argv", ["dataparallel.py", "--data", data_set()])
    monkeypatch.setattr(dataparallel, "main_worker", lambda **given: called.append("one of two"))
    with pytest.raises(SystemExit):
        dataparallel.main()
    monkeypatch.setattr("sys.argv", ["distributed.py", "--data", data_set(), "--local-rank", "0"])
    for name in (*job, "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name)
    distributed.main()
    assert called == [1, 0]
    assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == ("0", "1")


def runs_without_a_gpu(distributed, dataparallel, monkeypatch):
    import torch

    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 10))
    batch = (torch.randn(1, 3, 2, 2), torch.arange(1))  # the fault of `view` hides at one image
    device = dataparallel.devices.home(argparse.Namespace(device=None), [])
    wrapped = dataparallel.devices.data_parallel(model, [], device)
    alone(monkeypatch)
    args = argparse.Namespace(print_freq=1, local_rank=0, nprocs=1)
    for module, one in ((dataparallel, wrapped), (distributed, model)):
        call(module.validate, [batch], one, torch.nn.CrossEntropyLoss(), device=device, args=args)


def leaves_the_process_group(distributed, dataparallel, monkeypatch):
    ended = []
    monkeypatch.setattr("sys.argv", ["distributed.py", "--data", data_set()])
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.destroy_process_group", lambda: ended.append(True))
    monkeypatch.setattr(distributed, "main_worker", lambda *args: None)
    distributed.main()
    assert ended == [True]
    monkeypatch.setattr(distributed, "main_worker", lambda *args: 1 / 0)
    with pytest.raises(
        SystemExit
    ) as status:  # at once: with NCCL, to leave the group waits for all ranks
        distributed.main()
    assert (status.value.code, ended) == (1, [True])


def compares_the_ranks(distributed, dataparallel, monkeypatch):
    met = []
    monkeypatch.setattr(distributed.job, "meet", met.append)
    given_to_the_worker(distributed, monkeypatch, "--lr", "0.3")
    assert [args.lr for args in met] == [0.3]


def speaks_on_rank_zero_alone(distributed, dataparallel, monkeypatch):
    said = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            distributed.ProgressMeter(1, [], prefix="Test: ").display(0)
        said.append(out.getvalue())
    assert said == ["Test: [0/1]\n", ""]


def tells_what_the_job_is(distributed, dataparallel, monkeypatch):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        loaders(distributed, monkeypatch, images=24, batch_size=24, rank=0, world=3)
    assert "topology: hosts=1 processes=3 per_host=3 " in out.getvalue()


def validates_without_waiting_for_ranks(distributed, dataparallel, monkeypatch):
    import torch

    class Waiting(torch.nn.Module):
        """Stands for the model of several ranks, whose forward pass is one of all of them."""

        def __init__(self):
            super().__init__()
            self.module = torch.nn.Sequential(
                torch.nn.Flatten(), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 6)
            )

        def forward(self, images):
            raise AssertionError("a rank without a batch is not here")

    sent = []
    monkeypatch.setattr("torch.nn.parallel.DistributedDataParallel", Waiting)
    monkeypatch.setattr(
        "torch.distributed.broadcast", lambda tensor, source: sent.append((tensor.shape, source))
    )
    model = Waiting()
    run_loop(distributed, "validate", monkeypatch, model, list(guesses([3], [1])), ranks=2)
    assert sent == [(buffer.shape, 0) for buffer in model.buffers()]
    assert not model.training and not model.module.training


def run_loop(
    module, name, monkeypatch, model, batches, print_freq=10, ranks=1, watch=None, save_every=0
):
    """What `train()` or `validate()` returns for these batches of (rows, targets), and its calls of the process group.

    Of `ranks` ranks this is one, and the others have the same numbers.
    """
    import torch

    calls = []

    def all_reduce(tensor, *args, **kwargs):
        calls.append("all_reduce")
        tensor.mul_(ranks)

    def all_gather_object(parts, part):
        calls.append("all_gather_object")
        parts[:] = [part] * ranks

    def accuracy(output, target, topk):  # that of the script is another patch's matter
        hits = (output.argmax(1) == target).sum()
        return [torch.tensor([100.0 / len(target)]) * hits] * len(topk)

    alone(monkeypatch)
    monkeypatch.setattr(module, "accuracy", accuracy)
    monkeypatch.setattr("torch.Tensor.cuda", lambda self, *args, **kwargs: self)
    monkeypatch.setattr("torch.distributed.barrier", lambda: calls.append("barrier"))
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: ranks > 1)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda *group: ranks)
    monkeypatch.setattr("torch.distributed.all_reduce", all_reduce)
    monkeypatch.setattr("torch.distributed.all_gather_object", all_gather_object)
    args = argparse.Namespace(print_freq=print_freq, nprocs=ranks, data="", arch="", seed=0)
    vars(args).update(start_epoch=0, epochs=1, batch_size=4, save_every=save_every)
    optimizer = torch.optim.SGD(model.parameters(), 0.25) if list(model.parameters()) else None
    more = {"device": torch.device("cpu"), "args": args}
    if hasattr(module, "checkpoint"):
        more["run"] = module.checkpoint.Run(model, optimizer, args)
    if hasattr(module, "stop"):
        monkeypatch.setattr(module.stop, "_watch", watch or GoesOn())
    first = [
        Loader(batches),
        model,
        torch.nn.CrossEntropyLoss(),
        *([optimizer, 0] if name == "train" else []),
    ]
    return call(getattr(module, name), *first, **more), calls


class GoesOn:
    """Stands for the watch of a job that nobody stops before it has been asked `last` times."""

    def __init__(self, last=1000):
        self.asked, self.last, self.beats = 0, last, 0

    def is_due(self):
        self.asked += 1
        return self.asked > self.last

    def is_coming(self):
        return False


class Loader(list):
    """Batches as a loader gives them."""

    batch_size = 4

    @property
    def sampler(self):
        return range(4 * len(self))


def guesses(sizes, right):
    """Batches of these sizes for a model that hands its input on; of each batch so many rows have the right answer."""
    import torch

    for size, hits in zip(sizes, right):
        yield 9 * torch.eye(6)[[0] * size], torch.tensor([0] * hits + [5] * (size - hits))


def adds_up_the_hits_behind_the_loop(distributed, dataparallel, monkeypatch):
    import torch

    batches = list(guesses([256, 256, 10], [180, 205, 9]))
    for module in (distributed, dataparallel):
        acc1, _ = run_loop(module, "validate", monkeypatch, torch.nn.Identity(), batches)
        assert acc1 == 100 * (180 + 205 + 9) / 522  # to the last bit
    acc1, calls = run_loop(
        distributed, "validate", monkeypatch, torch.nn.Identity(), batches, ranks=3
    )
    assert acc1 == 100 * (180 + 205 + 9) / 522
    assert len(calls) == 1


def reduces_only_what_it_prints(distributed, dataparallel, monkeypatch):
    import torch

    model = torch.nn.Linear(6, 6)
    items = []
    item = torch.Tensor.item
    monkeypatch.setattr("torch.Tensor.item", lambda self: items.append(self) or item(self))
    _, calls = run_loop(
        distributed, "train", monkeypatch, model, list(guesses([4] * 20, [2] * 20)), ranks=2
    )
    assert calls.count("barrier") == 0 and calls.count("all_reduce") == 2
    run_loop(dataparallel, "train", monkeypatch, model, list(guesses([4] * 20, [2] * 20)))
    assert items == []


def stops_at_a_loss_that_is_not_finite(distributed, dataparallel, monkeypatch):
    import torch

    batches = list(guesses([4] * 8, [2] * 8))
    batches[3] = (batches[3][0] * float("nan"), batches[3][1])
    for module in (distributed, dataparallel):
        with pytest.raises(SystemExit) as ended:
            run_loop(module, "train", monkeypatch, torch.nn.Linear(6, 6), batches)
        assert ended.value.code == 2


def offers_models_only(distributed, dataparallel, monkeypatch):
    import torchvision

    for module in (distributed, dataparallel):
        assert all(name in torchvision.models.list_models() for name in module.model_names)
        assert {"resnet18", "vit_l_16"} < set(module.model_names)


def given_to_the_worker(module, monkeypatch, *argv):
    """The parsed arguments as `main()` hands them on."""
    handed = []
    monkeypatch.setattr("sys.argv", [f"{module.__name__}.py", "--data", data_set(), *argv])
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    monkeypatch.setattr(
        module, "main_worker", lambda *given, **named: handed.append(arguments_of(given, named))
    )
    module.main()
    return handed[0]


def makes_the_model_for_the_data(distributed, dataparallel, monkeypatch):
    for module in (distributed, dataparallel):
        for argv, outputs in (([], 3), (["--num-classes", "7"], 7)):
            made = []
            loaders_of(module, monkeypatch, *argv, optimized=made)
            assert made[-1].shape == (outputs,)  # the bias of the head


def refuses_classes_that_training_does_not_know(distributed, dataparallel, monkeypatch):
    for module in (distributed, dataparallel):
        with pytest.raises(SystemExit) as ended:
            given_to_the_worker(module, monkeypatch, "--data", data_set(val="bcd"))
        assert ended.value.code == 2


def counts_top_5_of_three_classes(distributed, dataparallel, monkeypatch):
    import torch

    for module in (distributed, dataparallel):
        for label in range(3):
            scores, target = torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([label])
            assert [n.item() for n in module.accuracy(scores, target, topk=(1, 5))] == [
                100 * (label == 0),
                100,
            ]


def loaders_of(module, monkeypatch, *argv, optimized=None, trained=None, saved=None) -> list:
    """(data set, keywords) of the loaders that the script makes, for training and for validation.

    What the optimizer gets is put into `optimized`, what `train` gets into `trained`, and what is saved into `saved`.
    """
    import torch

    made, sgd = [], torch.optim.SGD

    class Loader(list):
        def __init__(self, dataset, **keywords):
            made.append((dataset, keywords))
            self.dataset = dataset

    def optimizer(parameters, *args, **kwargs):
        parameters = list(parameters)
        if optimized is not None:
            optimized[:] = parameters
        return sgd(parameters, *args, **kwargs)

    with monkeypatch.context() as context:
        args = given_to_the_worker(module, context, "--arch", "shufflenet_v2_x0_5", *argv)
    if "--epochs" not in argv:
        args.epochs = 0
    args.local_rank = 0
    with monkeypatch.context() as context:
        alone(context)
        context.setattr("torch.optim.SGD", optimizer)
        context.setattr("torch.distributed.init_process_group", lambda *args, **kwargs: None)
        context.setattr("torch.distributed.is_initialized", lambda: True)
        context.setattr("torch.distributed.get_world_size", lambda *group: 1)
        context.setattr("torch.distributed.get_rank", lambda *group: 0)
        context.setattr("torch.distributed.destroy_process_group", lambda: None)
        context.setattr("torch.nn.parallel.DistributedDataParallel", Wrapped)
        context.setattr("torch.nn.DataParallel", Wrapped)
        context.setattr("torch.cuda.set_device", lambda device: None)
        context.setattr("torch.nn.Module.cuda", lambda self, device=None: self)
        context.setattr("torch.utils.data.DataLoader", Loader)
        context.setattr(module, "train", lambda *given: trained.append(given))
        context.setattr(module, "validate", lambda *args: 0.0)
        context.setattr(module, "save_checkpoint", lambda *given: saved.append(given))
        call(
            module.main_worker,
            *([[]] if hasattr(module, "devices") else [[0]])[: module.__name__ == "dataparallel"],
            args=args,
            nprocs=1,
        )
    assert len(made) == 2
    return made


def Wrapped(model, **kwargs):
    """A model under the name `module`, as wrappers for several devices have it."""
    import torch

    return torch.nn.Sequential(collections.OrderedDict(module=model))


def obeys_the_number_of_workers(distributed, dataparallel, monkeypatch):
    for module, workers in itertools.product((distributed, dataparallel), (0, 3)):
        for _, keywords in loaders_of(module, monkeypatch, "-j", str(workers)):
            assert keywords["num_workers"] == workers
            assert keywords["persistent_workers"] == (workers > 0)


def lets_the_seed_decide(distributed, dataparallel, monkeypatch):
    import torch

    for flag in ("benchmark", "deterministic"):  # to be put back
        monkeypatch.setattr(f"torch.backends.cudnn.{flag}", False)
    for module in (distributed, dataparallel):
        loaders_of(module, monkeypatch)
        assert torch.backends.cudnn.benchmark
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaders_of(module, monkeypatch, "--seed", "5")
        assert not torch.backends.cudnn.benchmark
        if module is distributed:
            monkeypatch.setenv("RANK", "1")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                loaders_of(module, monkeypatch, "--seed", "5")
            assert torch.initial_seed() != 5
            monkeypatch.delenv("RANK")


def names_images_that_cannot_be_decoded(distributed, dataparallel, monkeypatch):
    monkeypatch.chdir(tempfile.mkdtemp())
    for module in (distributed, dataparallel):
        for dataset, _ in loaders_of(module, monkeypatch):
            dataset = getattr(dataset, "images", dataset)
            with pytest.raises(
                Exception, match="0.jpg"
            ) as caught:  # the data set only looks like one
                dataset[0]
            assert str(caught.value).startswith(f"cannot decode {dataset.root}/a/0.jpg: ")


def prints_what_it_would_warn_of(distributed, dataparallel, monkeypatch):
    for module in (distributed, dataparallel):
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()) as err:
            warnings.simplefilter("error")
            try:
                given_to_the_worker(module, monkeypatch, "--seed", "5")
            except UserWarning as warning:
                raise AssertionError("this ends the run") from warning
        name = f"{module.__name__}.py"
        assert err.getvalue() == (
            f"{name}: warning: --seed asks cuDNN for deterministic kernels only, and these can be a good deal slower.\n"
        )


def refuses_numbers_without_a_meaning(distributed, dataparallel, monkeypatch):
    for module in (distributed, dataparallel):
        with pytest.raises(SystemExit) as ended:
            given_to_the_worker(module, monkeypatch, "--print-freq", "0")
        assert ended.value.code == 2


def refuses_another_number_of_processes(distributed, dataparallel, monkeypatch):
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    for expected, refused in (("4", True), ("2", False)):
        with pytest.raises(SystemExit) if refused else contextlib.nullcontext() as ended:
            given_to_the_worker(distributed, monkeypatch, "--expect-world", expected)
        assert not refused or ended.value.code == 2


def writes_where_it_is_told_to(distributed, dataparallel, monkeypatch):
    here = tempfile.mkdtemp()
    monkeypatch.chdir(here)
    shutil.copytree(data_set(), "data")
    for module in (distributed, dataparallel):
        folder = Path(tempfile.mkdtemp()) / "new" / "folder"
        args = given_to_the_worker(
            module, monkeypatch, "--data", "data", "--output-dir", str(folder)
        )
        assert (Path.cwd(), args.data) == (folder, f"{here}/data")
        monkeypatch.chdir(here)


def replaces_files_by_whole_ones(distributed, dataparallel, monkeypatch):
    import torch

    save = torch.save

    def fails(state, path):
        Path(path).write_bytes(b"half of it")
        raise RuntimeError("file write failed")

    for module in (distributed, dataparallel):
        monkeypatch.chdir(tempfile.mkdtemp())
        monkeypatch.setattr("torch.save", save)
        module.save_checkpoint({"epoch": 1}, True)
        module.save_checkpoint({"epoch": 2}, False)
        monkeypatch.setattr("torch.save", fails)
        with pytest.raises(SystemExit):
            module.save_checkpoint({"epoch": 3}, True)
        whole = {
            path.name: torch.load(path, weights_only=True)["epoch"] for path in Path.cwd().iterdir()
        }
        assert whole == {
            "checkpoint.pth.tar": 2,
            "checkpoint_previous.pth.tar": 1,
            "model_best.pth.tar": 1,
        }


def saves_all_that_a_run_needs_and_goes_on_from_it(distributed, dataparallel, monkeypatch):
    import torch

    folder, data = Path(tempfile.mkdtemp()), data_set()
    monkeypatch.chdir(folder)
    for module in (distributed, dataparallel):
        with pytest.raises(SystemExit) as ended, monkeypatch.context() as context:
            given_to_the_worker(module, context, "--data", data, "-e")
        assert ended.value.code == 2

        saved, trained, optimized = [], [], []
        argv = ("--data", data, "--epochs", "1")
        loaders_of(module, monkeypatch, *argv, optimized=optimized, trained=trained, saved=saved)
        (state, is_best), *rest = saved
        assert (rest, is_best) == ([], False)
        assert set(state.get("optimizer", ())) == {"state", "param_groups"}
        assert (state["epoch"], state["step"], state["world_size"], type(state["best_acc1"])) == (
            1,
            0,
            1,
            float,
        )
        assert (state["format"], state["classes"], state["sums"]) == (1, ["a", "b", "c"], [])

        torch.manual_seed(1)
        model = torchvision_model(state["arch"], len(optimized[-1]))
        upstreams = {
            "epoch": 4,
            "arch": state["arch"],
            "state_dict": model.state_dict(),
            "best_acc1": 50.0,
        }
        for old, best in (
            (upstreams, 50.0),
            (dict(state, epoch=4, state_dict=model.state_dict(), best_acc1=9.0), 9.0),
        ):
            torch.save(old, "old.pth.tar")
            saved, trained, optimized = [], [], []
            argv = ("--data", data, "--resume", "old.pth.tar", "--epochs", "6")
            loaders_of(
                module, monkeypatch, *argv, optimized=optimized, trained=trained, saved=saved
            )
            assert [given[4] for given in trained] == [4, 5]
            assert all(
                torch.equal(a, b) for a, b in zip(model.parameters(), optimized, strict=True)
            )
            assert [(new["epoch"], new["best_acc1"], is_best) for new, is_best in saved] == [
                (5, best, False),
                (6, best, False),
            ]
            assert {new["run"] == state["run"] for new, _ in saved} == {old is not upstreams}


def torchvision_model(name, classes):
    import torchvision

    return torchvision.models.get_model(name, num_classes=classes)


def draws_the_same_samples_again(distributed, dataparallel, monkeypatch):
    import torch

    for module in (distributed, dataparallel):
        (images, keywords), _ = loaders_of(module, monkeypatch, "-b", "2")
        sampler = keywords["sampler"]
        run = sampler.run
        run.epoch = 5
        whole = list(sampler)
        assert sorted(index for index, _ in whole) == [0, 1, 2]
        run.first_epoch, run.images = 5, 2
        assert list(sampler) == whole[2:]
        run.epoch = 6
        assert {origin for _, origin in sampler} != {origin for _, origin in whole}
        if module is distributed:
            assert sampler.sampler.seed == run.seed

        class Drawn(dict):
            def __missing__(self, index):
                return random.random(), torch.rand(1).item()

        images.images = Drawn()
        assert images[0, (7, 1)] == images[0, (7, 1)]
        assert (
            len({images[sample] for sample in ((0, (7, 1)), (1, (7, 1)), (0, (8, 1)), (0, (7, 2)))})
            == 4
        )


def saves_and_leaves_behind_a_step(distributed, dataparallel, monkeypatch):
    import torch

    batches = list(guesses([4] * 9, [2] * 9))
    for module in (distributed, dataparallel):
        saved = []
        monkeypatch.setattr(
            module, "save_checkpoint", lambda state, best, saved=saved: saved.append((state, best))
        )
        with pytest.raises(SystemExit) as ended:
            run_loop(module, "train", monkeypatch, torch.nn.Linear(6, 6), batches, watch=GoesOn(3))
        (state, best), *rest = saved
        assert (ended.value.code, best, rest) == (75, False, [])
        assert (state["epoch"], state["step"], state["images"]) == (0, 3, 12)
        with pytest.raises(SystemExit) as ended:
            run_loop(
                module, "validate", monkeypatch, torch.nn.Linear(6, 6), batches, watch=GoesOn(0)
            )
        assert (ended.value.code, len(saved)) == (75, 2)
        run_loop(module, "train", monkeypatch, torch.nn.Linear(6, 6), batches, save_every=4)
        assert [state["step"] for state, _ in saved[2:]] == [4, 8]


def lets_loaders_outlive_signals(distributed, dataparallel, monkeypatch):
    for module in (distributed, dataparallel):
        for _, keywords in loaders_of(module, monkeypatch):
            prepare = keywords.get("worker_init_fn", lambda worker: None)
            ready, told = os.pipe()
            child = os.fork()
            if child == 0:  # a loading process
                prepare(0)
                os.write(told, b"1")
                time.sleep(60)
                os._exit(5)
            os.read(ready, 1)
            for name in ("TERM", "INT", "USR1"):  # from a launcher or a terminal
                subprocess.run(["sh", "-c", f"kill -{name} {child}"], check=True)
            time.sleep(0.2)
            survived = os.waitpid(child, os.WNOHANG) == (0, 0)
            if survived:
                os.kill(child, signal.SIGTERM)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert survived


PURPOSES = {
    "output_dir": writes_where_it_is_told_to,
    "whole_files": replaces_files_by_whole_ones,
    "resume": saves_all_that_a_run_needs_and_goes_on_from_it,
    "samples_left": draws_the_same_samples_again,
    "saved_steps": saves_and_leaves_behind_a_step,
    "loader_signals": lets_loaders_outlive_signals,
    "local_rank_from_env": takes_rank_from_environment,
    "reshape_topk": counts_top_k,
    "configurable_gpus": uses_the_gpus_asked_for,
    "node_batch": takes_the_batch_that_the_node_was_given,
    "val_sampler": validates_every_image_once,
    "any_launcher": finds_its_rank,
    "any_device": runs_without_a_gpu,
    "ended_process_group": leaves_the_process_group,
    "rank_zero": speaks_on_rank_zero_alone,
    "topology_line": tells_what_the_job_is,
    "bare_validation": validates_without_waiting_for_ranks,
    "exact_validation": adds_up_the_hits_behind_the_loop,
    "train_meters": reduces_only_what_it_prints,
    "finite_loss": stops_at_a_loss_that_is_not_finite,
    "arch_choices": offers_models_only,
    "model_for_data": makes_the_model_for_the_data,
    "train_classes": refuses_classes_that_training_does_not_know,
    "loader_workers": obeys_the_number_of_workers,
    "seeded_run": lets_the_seed_decide,
    "bad_images": names_images_that_cannot_be_decoded,
    "topk_classes": counts_top_5_of_three_classes,
    "printed_warnings": prints_what_it_would_warn_of,
    "argument_checks": refuses_numbers_without_a_meaning,
    "expected_world": refuses_another_number_of_processes,
    "same_job": compares_the_ranks,
}


def missed(series, results, folder, monkeypatch) -> set[str]:
    """The patches of `series` whose purpose these scripts, which are put into `folder`, do not serve."""
    import torch

    write(folder, results)
    monkeypatch.syspath_prepend(folder)
    forget_support()
    with monkeypatch.context() as context:
        context.setattr("os.environ", {**os.environ, "LOCAL_RANK": "3"})
        modules = [
            load(folder / name, name.removesuffix(".py"))
            for name in ("distributed.py", "dataparallel.py")
        ]
    handlers = {
        number: signal.getsignal(number)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    }
    missed = set()
    for name in PROJECT.series(series):
        torch.manual_seed(0)  # a purpose has its say about a patch, chance has not
        try:
            with monkeypatch.context() as context:
                context.setattr(
                    "os.environ", {**os.environ, "LOCAL_RANK": "3"}
                )  # the scripts write to it
                context.chdir(tempfile.mkdtemp())
                stay_alive(context)
                PURPOSES[name](*modules, context)
        except (AssertionError, AttributeError, RuntimeError, SystemExit, pytest.fail.Exception):
            missed.add(name)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    forget_support()
    return missed


def stay_alive(monkeypatch) -> None:
    """Keep from this process what a script does to its own: hear signals, wait for other ranks, end at once."""
    for name, stand_in in {
        "stop.catch_signals": lambda: None,
        "job.meet": lambda args: None,
        "ending.at_once": sys.exit,
    }.items():
        if f"support.{name.partition('.')[0]}" in sys.modules:
            monkeypatch.setattr(f"support.{name}", stand_in)


def forget_support() -> None:
    """Let the next script import the modules of its own folder."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "support"]:
        del sys.modules[name]


def test_every_patch_has_a_purpose_that_is_tested():
    assert set(PURPOSES) == set(NAMES)


@pytest.mark.parametrize("series", SERIES)
def test_series_serves_every_purpose(series, tmp_path, monkeypatch, capfd):
    assert missed(series, results_of(patches_of(series)), tmp_path, monkeypatch) == set()


@pytest.mark.parametrize(
    "series, one", [(s, name) for s, names in PROJECT.all_series().items() for name in names]
)
def test_without_one_patch_exactly_its_purpose_is_missed(series, one, tmp_path, monkeypatch, capfd):
    gone = set(PROJECT.series(series)) - {patch.slug() for patch in without(series, one)}
    assert one in gone
    assert missed(series, results_without(series, one), tmp_path, monkeypatch) == gone


@pytest.mark.parametrize("series", SERIES)
def test_every_name_in_a_built_script_is_defined_and_only_once(series, tmp_path):
    # What a patch inserts uses imports and other functions, and has to bring those that are missing.
    write(tmp_path, results_of(patches_of(series)))
    check = [
        Path(sys.executable).parent / "ruff",
        "check",
        "--isolated",
        "--no-cache",
        "--output-format",
        "concise",
    ]
    done = subprocess.run(
        [*check, "--select", "F821,F811,F841", tmp_path], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "All checks passed!\n")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_pass_makes_what_libcsts_own_visit_makes(name):
    # Of the script as it is, and of what the whole series makes of it, where there are other nodes.
    whole = rendered(patches_of("standard"))[name]
    for source in (SCRIPTS[name], whole):
        module, draft = parse(name, source, Printer()), Draft(source, SUPPORT)
        for patch in (patch for patch in patches_of("standard") if name in patch.sites):
            for statement in module.body:
                ours, theirs = patch.fresh(), patch.fresh()
                for one in (ours, theirs):
                    one.module, one.text, one.draft = module, module.code_for_node, draft.copy()
                results = walk(statement, ours), statement.visit(theirs)
                parts = [
                    result if isinstance(result, cst.FlattenSentinel) else [result]
                    for result in results
                ]
                # LibCST takes the blank line above a removed line with it.
                codes = [module.with_changes(body=part).code.split("\n") for part in parts]
                assert len({"\n".join(filter(str.strip, lines)) for lines in codes}) == 1
                assert [function for function, _ in ours.hits] == [
                    function for function, _ in theirs.hits
                ]
                assert ours.already_done == theirs.already_done
                assert ours.hits or results[0] is statement
