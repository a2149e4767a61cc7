"""What the command line may say, and how each check says what is wrong."""

import argparse
import importlib
import pkgutil
import socket

import pytest

pytest.importorskip("torch")
from conftest import REPO, load

from patches import support
from patches.support import arguments, ranks, terminal

MODULES = [
    importlib.import_module(f"patches.support.{module.name}")
    for module in pkgutil.iter_modules(support.__path__)
]
SCRIPTS = ("distributed", "dataparallel")
FLOATS = ("lr", "min-lr", "momentum", "timeout", "warmup", "warmup-start", "weight-decay")
FLOATS += ("clip-grad", "cutmix", "dropout", "ema", "label-smoothing", "mixup", "random-erase")
FLOATS += ("stochastic-depth",)
OUT_OF_RANGE = [
    *((option, str(least - 1)) for option, (least, _) in arguments.RANGES.items()),
    *((option, str(most + 1)) for option, (_, most) in arguments.RANGES.items()),
    *((option, found) for option in FLOATS for found in ("nan", "inf", "-inf")),
]
VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID")


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """A process without any launcher."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.argv", ["/home/me/distributed.py"])


def parsers():
    """Upstream's two parsers and, in a third one, the options of all modules."""
    added = argparse.ArgumentParser()
    for module in MODULES:
        if hasattr(module, "add_options"):
            module.add_options(added)
    return [*(load(REPO / "upstream" / f"{name}.py", name).parser for name in SCRIPTS), added]


def numeric():
    """(parser, action) of every option that takes a number, by the name of its value."""
    pairs = [(parser, action) for parser in parsers() for action in parser._actions]
    return {action.dest: pair for pair in pairs if (action := pair[1]).type in (int, float)}


NUMERIC = numeric()


def refused(args, capsys):
    """The line with which `check` ends the process."""
    with pytest.raises(SystemExit) as ended:
        arguments.check(args)
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err


def test_every_numeric_option_has_a_range_and_every_range_an_option():
    assert {option.replace("-", "_") for option in arguments.RANGES} == set(NUMERIC)
    assert {"batch_size", "lr", "local_rank", "timeout", "num_classes"} < set(NUMERIC)
    for option, (least, most) in arguments.RANGES.items():
        assert f"--{option}" in NUMERIC[option.replace("-", "_")][1].option_strings
        assert type(least) is type(most) is int and least < most
    floats = {name for name, (_, action) in NUMERIC.items() if action.type is float}
    assert floats == {option.replace("-", "_") for option in FLOATS}


@pytest.mark.parametrize("option, found", OUT_OF_RANGE)
def test_number_out_of_its_range_is_refused_with_option_value_and_range(option, found, capsys):
    least, most = arguments.RANGES[option]
    parser, _ = NUMERIC[option.replace("-", "_")]
    words = f"--{option}: expected {least} to {most}, found {found}"
    line = refused(parser.parse_args([f"--{option}={found}"]), capsys)
    assert line == f"distributed.py: error: {words}\n"


@pytest.mark.parametrize("end", [0, 1])
@pytest.mark.parametrize("option", arguments.RANGES)
def test_both_ends_of_a_range_belong_to_it(option, end, capsys):
    parser, _ = NUMERIC[option.replace("-", "_")]
    args = parser.parse_args([f"--{option}={arguments.RANGES[option][end]}"])
    args.evaluate = True  # so no epoch is needed
    arguments.check(args)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("found", ["inf", "-inf", "nan", str(2**70), "-1", "1e400", "9" * 5000])
@pytest.mark.parametrize("option", [action.option_strings[-1] for _, action in NUMERIC.values()])
def test_each_numeric_option_refuses_what_is_no_number_for_it(option, found, capsys):
    """B15: inf, NaN, 2**70 and -1 end with status 2 and without a traceback, whichever option gets
    them.
    """
    (parser, action) = next(pair for pair in NUMERIC.values() if option in pair[1].option_strings)
    if (action.dest, found) == ("local_rank", "-1"):
        return  # upstream's default
    with pytest.raises(SystemExit) as ended:  # by argparse, if it is no number of its type
        arguments.check(parser.parse_args([f"{option}={found}"]))
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("option", FLOATS)
def test_negative_zero_is_zero(option, capsys):
    """B15: -0.0 is in a range that begins at 0, and torch takes it as 0."""
    parser, _ = NUMERIC[option.replace("-", "_")]
    args = parser.parse_args([f"--{option}=-0.0"])
    if arguments.RANGES[option][0] > 0:
        assert refused(args, capsys).endswith(", found -0\n")
    else:
        arguments.check(args)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"epochs": 0}, "--epochs 0: there is no epoch to train"),
        ({"epochs": 0, "resume": "auto"}, "--epochs 0: there is no epoch to train"),
        (
            {"epochs": 2, "start_epoch": 9},
            "--epochs 2: --start-epoch is 9: there is no epoch to train",
        ),
        (
            {"epochs": 2, "start_epoch": 2},
            "--epochs 2: --start-epoch is 2: there is no epoch to train",
        ),
        (
            {"start_epoch": 3, "resume": "auto"},
            "--start-epoch 3: --resume begins where its checkpoint ends; give one of the two",
        ),
    ],
)
def test_run_without_an_epoch_to_train_is_refused(changes, words, capsys):
    """B15: it would end with status 0 and no word, and --start-epoch would lose to --resume."""
    args = argparse.Namespace(
        **{"epochs": 90, "start_epoch": 0, "resume": None, "evaluate": False, **changes}
    )
    assert refused(args, capsys) == f"distributed.py: error: {words}\n"


@pytest.mark.parametrize(
    "changes",
    [
        {"epochs": 0, "evaluate": True},
        {"epochs": 2, "start_epoch": 9, "evaluate": True},
        {"epochs": 2, "start_epoch": 1},
        {"epochs": 2, "resume": "auto"},  # perhaps of a finished run
    ],
)
def test_run_with_something_to_do_passes(changes, capsys):
    """B15: an evaluation needs no epoch, and how far a checkpoint has come is not known yet."""
    args = argparse.Namespace(
        **{"epochs": 90, "start_epoch": 0, "resume": None, "evaluate": False, **changes}
    )
    arguments.check(args)
    assert capsys.readouterr() == ("", "")


def test_home_folder_is_meant_in_every_option_that_names_a_path(monkeypatch):
    """B16: a shell leaves the ~ of --data=~/x as it is, and a folder of that name would be made."""
    monkeypatch.setenv("HOME", "/home/me")
    strings = {
        action.dest: parser
        for parser in parsers()
        for action in parser._actions
        if action.type in (None, str) and action.nargs is None and not action.choices
    }
    named = {"data", "init", "output_dir", "resume"}
    assert set(strings) - named == {"device", "gpus"} & set(
        strings
    )  # another one may be a path, too
    for name in named:
        option = "--" + name.replace("_", "-")
        for given, path in (
            ("~/x", "/home/me/x"),
            ("~", "/home/me"),
            ("x/~", "x/~"),
            ("auto", "auto"),
        ):
            args = strings[name].parse_args([f"{option}={given}"])
            arguments.check(args)
            assert getattr(args, name) == path


@pytest.mark.parametrize("parser", parsers(), ids=[*SCRIPTS, "added"])
def test_defaults_pass(parser, capsys):
    arguments.check(parser.parse_args([]))
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"workers": -1}, "--workers: expected 0 to 1024, found -1"),
        ({"workers": 3000000000}, "--workers: expected 0 to 1024, found 3000000000"),
        ({"print_freq": 0}, "--print-freq: expected 1 to 1000000000, found 0"),
        ({"batch_size": 0}, "--batch-size: expected 1 to 1048576, found 0"),
        ({"start_epoch": -1}, "--start-epoch: expected 0 to 1000000, found -1"),
        ({"epochs": -1}, "--epochs: expected 0 to 1000000, found -1"),
        ({"lr": -0.1}, "--lr: expected 0 to 1000, found -0.1"),
        ({"lr": -1.0}, "--lr: expected 0 to 1000, found -1"),
        ({"lr": float("nan")}, "--lr: expected 0 to 1000, found nan"),
        ({"weight_decay": -1e-4}, "--weight-decay: expected 0 to 1, found -0.0001"),
        ({"momentum": -1.0}, "--momentum: expected 0 to 1, found -1"),
        ({"skip_bad_images": -1}, "--skip-bad-images: expected 0 to 1000000000, found -1"),
        ({"seed": 2**63}, "--seed: expected 0 to 9223372036854775807, found 9223372036854775808"),
        ({"timeout": 1e9}, "--timeout: expected 1 to 31536000, found 1000000000"),
    ],
)
def test_message_is_in_plain_numbers(changes, words, capsys):
    assert refused(argparse.Namespace(**changes), capsys) == f"distributed.py: error: {words}\n"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"workers": 0, "epochs": 1, "lr": 0.0, "momentum": 0, "batch_size": 1},
        {"seed": None, "num_classes": None, "expect_world": None, "resume": None},
    ],
)
def test_options_that_a_script_lacks_or_nobody_gave_are_skipped(changes, capsys):
    arguments.check(argparse.Namespace(**changes))
    assert capsys.readouterr() == ("", "")


# How an error, a warning and a line are said once


@pytest.mark.parametrize("hosts", [1, 2])
def test_each_host_says_once_why_it_fails_and_which_it_is(hosts, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", str(3 * hosts))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    for rank in range(3 * hosts):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("LOCAL_RANK", str(rank % 3))
        with pytest.raises(SystemExit) as ended:
            terminal.exit_with_error("no such folder")
        assert ended.value.code == 2
    host = f"{socket.gethostname()}: " if hosts > 1 else ""
    expected = f"distributed.py: error: {host}no such folder\n" * hosts
    assert capsys.readouterr() == ("", expected)


def test_process_that_torchrun_has_not_ended_meanwhile_speaks_for_itself(monkeypatch, capsys):
    waited = []
    monkeypatch.setattr("time.sleep", waited.append)
    monkeypatch.setattr("signal.signal", lambda *args: None)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "7")
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    for rank, seconds in enumerate([0, 30, 30]):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        with pytest.raises(SystemExit) as ended:
            terminal.exit_with_error("no such folder")
        assert ended.value.code == 2
        assert sum(waited) == seconds
        waited.clear()
        assert capsys.readouterr() == ("", "distributed.py: error: no such folder\n")


def test_single_process_on_another_gpu_speaks_too(monkeypatch, capsys):
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert ranks.is_first_on_host()
    with pytest.raises(SystemExit):
        terminal.exit_with_error("no such folder")
    assert capsys.readouterr().err == "distributed.py: error: no such folder\n"


def test_rank_zero_alone_prints_and_warns(monkeypatch, capsys):
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        terminal.print_once("a", 1)
        terminal.warn("slow")
    assert capsys.readouterr() == ("a 1\n", "distributed.py: warning: slow\n")


def test_environment_says_where_a_process_stands(monkeypatch):
    def place():
        return ranks.rank(), ranks.world_size(), ranks.local_rank(), ranks.local_world_size()

    assert place() == (0, 1, 0, 1) and ranks.is_rank_zero()
    for name, value in zip(VARIABLES, "5182"):
        monkeypatch.setenv(name, value)
    assert place() == (5, 8, 1, 2) and not ranks.is_rank_zero()
    monkeypatch.delenv("LOCAL_WORLD_SIZE")  # an old launcher: all that it starts is on one host
    assert place() == (5, 8, 1, 8)


def test_values_stay_with_a_process_that_is_in_no_group():
    assert (ranks.gathered({"a": 1}), ranks.broadcast("x")) == ([{"a": 1}], "x")
