"""The lock, and the facts about the two scripts that the patches rely on."""

import argparse
import hashlib
import inspect
import json

import pytest
from conftest import REPO, load, relock, replace

from patcher.build import upstream
from patcher.core.problem import Problem

LOCK = json.loads((REPO / "upstream/lock.json").read_bytes())
SCRIPTS = ("dataparallel.py", "distributed.py")


def test_lock_describes_the_files_that_are_here():
    scripts, problems = upstream.verify(REPO / "upstream")
    assert problems == []
    assert set(scripts) == set(SCRIPTS)
    for name, source in scripts.items():
        assert source == (REPO / "upstream" / name).read_bytes()
        assert LOCK["files"][name] == upstream.entry(source)
        assert LOCK["files"][name]["sha256"] == hashlib.sha256(source).hexdigest()
        assert LOCK["files"][name]["size"] == len(source)


def test_lock_names_the_public_original():
    assert LOCK["original"] == {
        "repository": "https://github.com/tczhangzhi/pytorch-distributed",
        "commit": "cd12856",
        "date": "2021-08-19",
        "licence": "MIT",
        "files": {
            "dataparallel.py": {
                "sha256": "683f9c1bab9ede3fc9443cda9ff9c462a2eccecedf766dc7aa286e7de56a7d50",
                "lines": 381,
            },
            "distributed.py": {
                "sha256": "37b20448988adc04e4306e696e2a6f9d05cfef6874fc1614e05df48c8f171cb2",
                "lines": 399,
            },
        },
    }


def test_files_are_an_edition_of_our_own_and_say_so():
    for name in SCRIPTS:
        assert LOCK["files"][name]["sha256"] != LOCK["original"]["files"][name]["sha256"]
    assert "independent edition" in (REPO / "upstream/README.md").read_text()


def test_git_does_not_touch_the_bytes():
    assert (REPO / "upstream/.gitattributes").read_bytes() == b"* -text\n"


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_ends_without_a_newline_as_the_original_does(name):
    source = (REPO / "upstream" / name).read_bytes()
    assert source.endswith(b"\n    main()")
    assert b"\r" not in source


# Edits by hand

EDITS = {
    "first byte": lambda s: flip(s, 0),
    "last byte": lambda s: flip(s, len(s) - 1),
    "a quarter in": lambda s: flip(s, len(s) // 4),
    "the middle": lambda s: flip(s, len(s) // 2),
    "a newline": lambda s: flip(s, s.index(b"\n", len(s) // 3)),
    "a line removed": lambda s: s.replace(b"import random\n", b""),
    "a line added": lambda s: s.replace(b"import random\n", b"import random\nimport re\n"),
    "a line twice": lambda s: s.replace(b"import random\n", b"import random\nimport random\n"),
    "two lines swapped": lambda s: s.replace(
        b"import random\nimport shutil\n", b"import shutil\nimport random\n"
    ),
    "final newline added": lambda s: s + b"\n",
    "text appended": lambda s: s + b"\nx = 1",
    "last line removed": lambda s: s[: s.rindex(b"\n")],
    "emptied": lambda s: b"",
    "a form feed": lambda s: s.replace(b"\n\n\n", b"\n\x0c\n\n", 1),
    "not utf-8": lambda s: s.replace(b"import random", b"import r\xe4ndom"),
}


def flip(source: bytes, at: int) -> bytes:
    return source[:at] + bytes([source[at] ^ 1]) + source[at + 1 :]


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("edit", EDITS)
def test_edit_by_hand_is_reported_with_its_line(project, name, edit):
    path = project / "upstream" / name
    before = path.read_bytes()
    after = EDITS[edit](before)
    assert after != before
    path.write_bytes(after)
    scripts, problems = upstream.verify(project / "upstream")
    assert scripts[name] == after
    assert [problem.file for problem in problems] == [f"upstream/{name}"]
    common = next(
        (i for i, (a, b) in enumerate(zip(before, after)) if a != b), min(len(before), len(after))
    )
    assert problems[0].line == before.count(b"\n", 0, common) + 1
    assert problems[0].message.startswith("edited by hand")
    assert problems[0].code == 1


def test_edit_by_hand_is_shown_as_it_is_now(project):
    replace(project / "upstream/distributed.py", b"default=3200", b"default=256")
    (problem,) = upstream.verify(project / "upstream")[1]
    assert "now 'default=256,'" in problem.message
    assert "git checkout -- upstream" in problem.hint


def test_missing_script_and_one_too_many_are_both_reported(project):
    (project / "upstream/distributed.py").rename(project / "upstream/renamed.py")
    scripts, problems = upstream.verify(project / "upstream")
    assert list(scripts) == ["dataparallel.py"]
    assert [str(problem) for problem in problems] == [
        "upstream/distributed.py: missing, but in upstream/lock.json",
        "upstream/renamed.py: not in upstream/lock.json",
    ]


def test_folder_in_place_of_a_script_is_missing(project):
    (project / "upstream/distributed.py").unlink()
    (project / "upstream/distributed.py").mkdir()
    assert [str(problem) for problem in upstream.verify(project / "upstream")[1]] == [
        "upstream/distributed.py: missing, but in upstream/lock.json"
    ]


def test_new_upstream_that_is_in_the_lock_is_fine(project):
    replace(project / "upstream/distributed.py", b"default=3200", b"default=256")
    relock(project)
    assert upstream.verify(project / "upstream")[1] == []


def edited_lock(**changes):
    return json.dumps({**LOCK, **changes})


FIRST = LOCK["files"]["distributed.py"]


@pytest.mark.parametrize(
    "lock",
    [
        pytest.param("", id="empty"),
        pytest.param("{", id="cut off"),
        pytest.param("[]", id="a list"),
        pytest.param("null", id="null"),
        pytest.param('"files"', id="a string"),
        pytest.param("{}", id="no keys"),
        pytest.param('{"files": {"\udce4": 1}}', id="not utf-8"),
        pytest.param(edited_lock(files=["distributed.py"]), id="files is a list"),
        pytest.param(edited_lock(original={}), id="original is empty"),
        pytest.param(edited_lock(original={"repository": "x"}), id="no commit"),
        pytest.param(
            edited_lock(original={**LOCK["original"], "files": {"distributed.py": "0"}}),
            id="original files",
        ),
        pytest.param(edited_lock(files={"distributed.py": {}}), id="an entry is empty"),
        pytest.param(
            edited_lock(files={"distributed.py": FIRST["sha256"]}), id="an entry is a string"
        ),
        pytest.param(
            edited_lock(files={"distributed.py": {"sha256": "0" * 64, "size": 1}}), id="no lines"
        ),
        pytest.param(
            edited_lock(files={"distributed.py": {**FIRST, "sha256": "0", "lines": 7}}),
            id="lines is 7",
        ),
    ],
)
def test_damaged_lock_is_a_problem_in_the_lock(project, patcher, lock):
    (project / "upstream/lock.json").write_text(lock, errors="surrogateescape")
    with pytest.raises(Problem) as caught:
        upstream.verify(project / "upstream")
    assert caught.value.file == "upstream/lock.json"
    assert caught.value.code == 1
    result = patcher("check")
    assert result.code == 1
    assert "upstream/lock.json: not a lock" in result.out


def test_size_in_the_lock_counts_too(project):
    # One compares a download with the entry: a wrong number is as bad as a wrong checksum.
    entry = {**FIRST, "size": FIRST["size"] + 1}
    (project / "upstream/lock.json").write_text(
        edited_lock(files={**LOCK["files"], "distributed.py": entry})
    )
    problems = upstream.verify(project / "upstream")[1]
    assert len(problems) == 1


def test_readme_names_the_commit_of_the_lock():
    readme = (REPO / "upstream/README.md").read_text()
    lines = [
        line.split()
        for line in readme.splitlines()
        if line.startswith("    python -m patcher vendor ")
    ]
    original = LOCK["original"]
    assert [line[3:7] for line in lines] == [
        ["vendor", original["repository"], "--rev", original["commit"]]
    ] * 2


# The command line and the signatures, as the design states them

SHARED = [
    (("--data",), "data", ..., str),
    (("-a", "--arch"), "arch", "resnet18", None),
    (("-j", "--workers"), "workers", 4, int),
    (("--epochs",), "epochs", 90, int),
    (("--start-epoch",), "start_epoch", 0, int),
    (("-b", "--batch-size"), "batch_size", 3200, int),
    (("--lr", "--learning-rate"), "lr", 0.1, float),
    (("--momentum",), "momentum", 0.9, float),
    (("--wd", "--weight-decay"), "weight_decay", 1e-4, float),
    (("-p", "--print-freq"), "print_freq", 10, int),
    (("-e", "--evaluate"), "evaluate", False, "store_true"),
    (("--pretrained",), "pretrained", False, "store_true"),
    (("--seed",), "seed", None, int),
]
OPTIONS = {
    "dataparallel.py": SHARED,
    "distributed.py": [*SHARED[:8], (("--local_rank",), "local_rank", -1, int), *SHARED[8:]],
}
SIGNATURES = {
    "main": "()",
    "save_checkpoint": "(state, is_best, filename='checkpoint.pth.tar')",
    "adjust_learning_rate": "(optimizer, epoch, args)",
    "accuracy": "(output, target, topk=(1,))",
}
OWN_SIGNATURES = {
    "dataparallel.py": {
        "main_worker": "(gpus, args)",
        "train": "(train_loader, model, criterion, optimizer, epoch, args)",
        "validate": "(val_loader, model, criterion, args)",
    },
    "distributed.py": {
        "main_worker": "(local_rank, nprocs, args)",
        "train": "(train_loader, model, criterion, optimizer, epoch, local_rank, args)",
        "validate": "(val_loader, model, criterion, local_rank, args)",
        "reduce_mean": "(tensor, nprocs)",
    },
}


@pytest.fixture(scope="module")
def modules():
    return {name: load(REPO / "upstream" / name, name.removesuffix(".py")) for name in SCRIPTS}


@pytest.mark.parametrize("name", SCRIPTS)
def test_command_line_is_the_one_of_the_public_project(modules, name):
    parser = modules[name].parser
    assert isinstance(parser, argparse.ArgumentParser)
    assert parser.description == "PyTorch ImageNet Training"
    actions = [action for action in parser._actions if action.dest != "help"]
    found = [
        (
            tuple(action.option_strings),
            action.dest,
            action.default,
            "store_true" if isinstance(action, argparse._StoreTrueAction) else action.type,
        )
        for action in actions
    ]
    assert len(found) == len(OPTIONS[name])
    for have, want in zip(found, OPTIONS[name]):
        # Of the data folder only this much is stated: some absolute path.
        assert have == tuple(h if w is ... else w for h, w in zip(have, want))
    assert parser.get_default("data").startswith("/")
    assert parser.parse_args([]).arch == "resnet18"


@pytest.mark.parametrize("name", SCRIPTS)
def test_architectures_are_torchvisions_lower_case_callables(modules, name):
    models = modules[name].models
    action = next(a for a in modules[name].parser._actions if a.dest == "arch")
    expected = [
        n
        for n in models.__dict__
        if n.islower() and not n.startswith("__") and callable(models.__dict__[n])
    ]
    assert list(action.choices) == sorted(expected)
    assert {"resnet18", "vit_b_16", "vit_l_16"} <= set(action.choices)


@pytest.mark.parametrize("name", SCRIPTS)
def test_functions_have_the_signatures_of_the_public_project(modules, name):
    functions = inspect.getmembers(
        modules[name], lambda f: inspect.isfunction(f) and f.__module__ == name[:-3]
    )
    found = {function: str(inspect.signature(value)) for function, value in functions}
    assert found == {**SIGNATURES, **OWN_SIGNATURES[name]}


@pytest.mark.parametrize("name", SCRIPTS)
def test_meters_print_the_lines_of_the_public_project(modules, name, capsys):
    module = modules[name]
    time, acc = module.AverageMeter("Time", ":6.3f"), module.AverageMeter("Acc@1", ":6.2f")
    loss = module.AverageMeter("Loss", ":.4e")
    for value, count in ((1.0, 1), (5.109, 1)):
        time.update(value, count)
    acc.update(16.99, 4)
    loss.update(4.427, 4)
    module.ProgressMeter(626, [time, loss, acc], prefix="Epoch: [30]").display(48)
    expected = "Epoch: [30][ 48/626]\tTime  5.109 ( 3.054)\tLoss 4.4270e+00 (4.4270e+00)\t"
    expected += "Acc@1  16.99 ( 16.99)\n"
    assert capsys.readouterr().out == expected


QUOTED = {
    "dataparallel.py": [
        "    gpus = [0, 1, 2, 3]",
        "    model = nn.DataParallel(model, device_ids=gpus, output_device=gpus[0])",
        "            correct_k = correct[:k].view(-1).float().sum(0, keepdim=True)",
    ],
    "distributed.py": [
        "                    default=-1,",
        "            correct_k = correct[:k].view(-1).float().sum(0, keepdim=True)",
    ],
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_lines_that_the_vendors_guide_quotes_read_the_same(name):
    lines = (REPO / "upstream" / name).read_text().split("\n")
    for line in QUOTED[name]:
        assert lines.count(line) == 1
