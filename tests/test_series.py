"""The second ring: the series on `upstream/`."""

import ast
import itertools
import random
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from conftest import REPO, environment, load

from patcher.engine import Printer, Verdict, apply_once, parse, render
from patcher.project import Project, Request

PROJECT = Project(REPO)
SERIES = list(PROJECT.all_series())
SCRIPTS = {path.name: path.read_bytes() for path in sorted((REPO / "upstream").glob("*.py"))}
NAMES = list(dict.fromkeys(name for series in PROJECT.all_series().values() for name in series))


def patches_of(series, *sets) -> list:
    return PROJECT.patches_of(Request(series, sets))


def rendered(patches, scripts=SCRIPTS) -> dict[str, bytes]:
    """The scripts after `patches`, all of which have to be CLEAN."""
    results = [render(name, source, patches) for name, source in scripts.items()]
    for outcome in (outcome for result in results for outcome in result.outcomes):
        assert outcome.verdict is Verdict.CLEAN, outcome
    return {result.file: result.after for result in results}


def passed(source: bytes, patches) -> tuple[bytes, int]:
    """A source after one pass of each patch, whatever that finds, and the hits."""
    printer, hits, inserted = Printer(), 0, {}
    module = parse("script.py", source, printer)
    for patch in patches:
        run = patch.fresh()
        run.inserted = inserted  # as in the engine: patches know what those before them have inserted
        module = apply_once(module, run, printer)
        hits += len(run.hits)
    return printer.bytes(module), hits


def changed_lines(diff: str, sign: str) -> list[str]:
    return [line[1:] for line in diff.split("\n") if line.startswith(sign) and not line.startswith(sign * 3)]


@pytest.mark.parametrize("series", SERIES)
def test_every_patch_is_clean_on_every_file_that_it_names(series):
    patches = patches_of(series)
    rendered(patches)
    judged = {(o.patch, o.file) for n, s in SCRIPTS.items() for o in render(n, s, patches).outcomes}
    assert judged == {(patch.slug(), file) for patch in patches for file in patch.sites}


@pytest.mark.parametrize("series", SERIES)
def test_diff_is_the_golden_one(project, patcher, series):
    patcher("apply", "--series", series)
    result = patcher("diff", "--series", series)
    assert result.stdout == (REPO / f"tests/golden/{series}.diff").read_bytes()
    assert (result.code, result.stderr) == (0, b"")


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
    for source in rendered(patches).values():
        assert passed(source, patches) == (source, 0)


@pytest.mark.parametrize("series", SERIES)
def test_series_is_obsolete_on_its_own_output(series):
    patches = patches_of(series)
    for name, source in rendered(patches).items():
        outcomes = render(name, source, patches).outcomes
        assert {outcome.verdict for outcome in outcomes} == {Verdict.OBSOLETE}


def orders(patches) -> list:
    """All orders of a few patches; of many, each pair of neighbours swapped, the reverse, and some at random."""
    if len(patches) < 5:
        return list(itertools.permutations(patches))
    swapped = [[*patches[:i], patches[i + 1], patches[i], *patches[i + 2 :]] for i in range(len(patches) - 1)]
    dice = random.Random(0)
    return [*swapped, patches[::-1], *(dice.sample(patches, len(patches)) for _ in range(20))]


@pytest.mark.parametrize("series", SERIES)
def test_every_permitted_order_gives_the_same_bytes(series):
    patches = patches_of(series)
    golden = rendered(patches)
    for order in orders(patches):
        names = [patch.slug() for patch in order]
        if all(names.index(earlier) < names.index(p.slug()) for p in order for earlier in p.after if earlier in names):
            assert rendered(order) == golden, names


@pytest.mark.parametrize("series", SERIES)
@pytest.mark.parametrize("size", range(len(NAMES) + 1))
def test_series_on_top_of_any_part_of_it_ends_in_the_same_bytes(series, size):
    patches = patches_of(series)
    golden = rendered(patches)
    parts = list(itertools.combinations(patches, size))
    for part in parts if len(parts) < 20 else random.Random(size).sample(parts, 20):
        for name, source in SCRIPTS.items():
            assert passed(source, [*part, *patches])[0] == golden[name], [patch.slug() for patch in part]


@pytest.mark.parametrize("series", SERIES)
def test_twenty_lines_on_top_change_no_edit(series):
    top = b"".join(b"# line %d\n" % i for i in range(20))
    golden = rendered(patches_of(series))
    shifted = rendered(patches_of(series), {name: top + source for name, source in SCRIPTS.items()})
    assert shifted == {name: top + source for name, source in golden.items()}


@pytest.mark.parametrize("series", SERIES)
def test_output_compiles_and_keeps_its_imports(series):
    after = rendered(patches_of(series))
    for name, source in SCRIPTS.items():
        compile(after[name], name, "exec")
        kept = [line for line in imports(after[name]) if line in imports(source)]
        assert kept == imports(source)


def imports(source: bytes) -> list[str]:
    """Every import as text: upstream has some that look unused, and are not to go."""
    return [ast.unparse(node) for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.Import, ast.ImportFrom))]


@pytest.mark.parametrize("series", SERIES)
def test_output_keeps_every_function_with_its_signature(series):
    after = rendered(patches_of(series))
    for name, source in SCRIPTS.items():
        kept = signatures(after[name])
        assert [signature for signature in kept if signature in signatures(source)] == signatures(source)


def signatures(source: bytes) -> list[str]:
    functions = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
    return [f"{node.name}({ast.unparse(node.args)})" for node in functions]


@pytest.mark.parametrize("name", SCRIPTS)
def test_upstream_survives_parsing_and_printing(name):
    printer = Printer()
    assert printer.bytes(parse(name, SCRIPTS[name], printer)) == SCRIPTS[name]


# The built scripts themselves


@pytest.fixture(scope="module")
def helps(tmp_path_factory):
    """`--help` of the standard scripts: (stdout, stderr, status) by name.  At once: most of it is importing torch."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("standard")
    environ = environment(LOCAL_RANK=None, PYTHONPATH=None, COLUMNS="100")
    runs = {}
    for name, source in rendered(patches_of("standard")).items():
        (folder / name).write_bytes(source)
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
    target[::2] = output[::2].argsort(descending=True)[:, 2]  # half of them hits at k = 5, none at k = 1
    target[0] = output[0].argmax()
    plain = [
        100
        / 8
        * sum(int(t) in sorted(range(1000), key=row.tolist().__getitem__)[-k:] for row, t in zip(output, target))
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


def uses_the_gpus_asked_for(distributed, dataparallel, monkeypatch):
    called = []
    monkeypatch.setattr("sys.argv", ["dataparallel.py", "--gpus", "1,2", "--data", data_set()])
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    monkeypatch.setattr(dataparallel, "main_worker", lambda **arguments: called.append(arguments["gpus"]))
    dataparallel.main()
    assert called == [[1, 2]]


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
    monkeypatch.setattr(module, "main_worker", lambda *rest, **named: handed.append(named.get("args", rest[-1:])))
    module.main()
    return handed[0] if module.__name__ == "dataparallel" else handed[0][0]


def makes_the_model_for_the_data(distributed, dataparallel, monkeypatch):
    for module in (distributed, dataparallel):
        args = given_to_the_worker(module, monkeypatch, "--arch", "shufflenet_v2_x0_5")
        assert getattr(args, "num_classes", 1000) == 3
        assert module.build_model(args.arch, False, args.num_classes).fc.out_features == 3


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
            assert [n.item() for n in module.accuracy(scores, target, topk=(1, 5))] == [100 * (label == 0), 100]


def loaders_of(module, monkeypatch, *argv) -> list:
    """(data set, keywords) of the loaders that the script makes, for training and for validation."""
    import torch

    made = []

    def loader(dataset, **keywords):
        made.append((dataset, keywords))
        return []

    with monkeypatch.context() as context:
        args = given_to_the_worker(module, context, "--arch", "shufflenet_v2_x0_5", "-e", *argv)
    monkeypatch.setattr("torch.distributed.init_process_group", lambda *args, **kwargs: None)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda *group: 1)
    monkeypatch.setattr("torch.distributed.get_rank", lambda *group: 0)
    monkeypatch.setattr("torch.nn.parallel.DistributedDataParallel", lambda model, **kwargs: model)
    monkeypatch.setattr("torch.nn.DataParallel", lambda model, **kwargs: torch.nn.ModuleDict({"module": model}))
    monkeypatch.setattr("torch.cuda.set_device", lambda device: None)
    monkeypatch.setattr("torch.nn.Module.cuda", lambda self, device=None: self)
    monkeypatch.setattr("torch.utils.data.DataLoader", loader)
    monkeypatch.setattr(module, "validate", lambda *args: 0.0)
    if module.__name__ == "distributed":
        module.main_worker(0, 1, args)
    else:
        module.main_worker(gpus=[0], args=args)
    assert len(made) == 2
    return made


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
        with pytest.warns(UserWarning, match="--seed"):
            (_, keywords), _ = loaders_of(module, monkeypatch, "--seed", "5")
        assert not torch.backends.cudnn.benchmark
        if module is distributed:
            assert keywords["sampler"].seed == 5
            monkeypatch.setenv("RANK", "1")
            with pytest.warns(UserWarning, match="--seed"):
                loaders_of(module, monkeypatch, "--seed", "5")
            assert torch.initial_seed() != 5
            monkeypatch.delenv("RANK")


def names_images_that_cannot_be_decoded(distributed, dataparallel, monkeypatch):
    monkeypatch.chdir(tempfile.mkdtemp())
    for module in (distributed, dataparallel):
        for dataset, _ in loaders_of(module, monkeypatch):
            with pytest.raises(Exception, match="0.jpg") as caught:  # the data set only looks like one
                dataset[0]
            assert str(caught.value).startswith(f"cannot decode {dataset.root}/a/0.jpg: ")


PURPOSES = {
    "local_rank_from_env": takes_rank_from_environment,
    "reshape_topk": counts_top_k,
    "configurable_gpus": uses_the_gpus_asked_for,
    "arch_choices": offers_models_only,
    "model_for_data": makes_the_model_for_the_data,
    "train_classes": refuses_classes_that_training_does_not_know,
    "loader_workers": obeys_the_number_of_workers,
    "seeded_run": lets_the_seed_decide,
    "bad_images": names_images_that_cannot_be_decoded,
    "topk_classes": counts_top_5_of_three_classes,
}


def failing(series, without, folder, monkeypatch) -> set[str]:
    """The patches of `series` whose purpose is missed by the scripts that `series` makes without one of them."""
    monkeypatch.setenv("LOCAL_RANK", "3")
    patches = [patch for patch in patches_of(series) if patch.slug() != without]
    for name, source in rendered(patches).items():
        (folder / name).write_bytes(source)
    modules = [load(folder / name, name.removesuffix(".py")) for name in ("distributed.py", "dataparallel.py")]
    missed = set()
    for name in PROJECT.series(series):
        try:
            with monkeypatch.context() as context:
                PURPOSES[name](*modules, context)
        except (AssertionError, RuntimeError, SystemExit, pytest.fail.Exception):
            missed.add(name)
    return missed


def test_every_patch_has_a_purpose_that_is_tested():
    assert set(PURPOSES) == set(NAMES)


@pytest.mark.parametrize("series", SERIES)
def test_series_serves_every_purpose(series, tmp_path, monkeypatch, capfd):
    assert failing(series, None, tmp_path, monkeypatch) == set()


@pytest.mark.parametrize("series, without", [(s, name) for s, names in PROJECT.all_series().items() for name in names])
def test_without_one_patch_exactly_its_purpose_is_missed(series, without, tmp_path, monkeypatch, capfd):
    assert failing(series, without, tmp_path, monkeypatch) == {without}
