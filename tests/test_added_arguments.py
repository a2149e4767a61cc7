"""What `argument_checks` inserts, and how each check of the series says what is wrong."""

import argparse
import socket

import pytest

from patches.added.arguments import check_arguments
from patches.added.fail import fail


def arguments(**changes):
    defaults = {"batch_size": 8, "epochs": 2, "lr": 0.1, "momentum": 0.9, "print_freq": 10}
    return argparse.Namespace(**{**defaults, "start_epoch": 0, "weight_decay": 1e-4, "workers": 2, **changes})


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"workers": -1}, "--workers -1: expected is 0 or more"),
        ({"print_freq": 0}, "--print-freq 0: expected is 1 or more"),
        ({"batch_size": 0}, "--batch-size 0: expected is 1 or more"),
        ({"start_epoch": -1}, "--start-epoch -1: expected is 0 or more"),
        ({"epochs": -1}, "--epochs -1: expected is 0 or more"),
        ({"lr": -0.1}, "--lr -0.1: expected is 0 or more"),
        ({"lr": float("nan")}, "--lr nan: expected is 0 or more"),
        ({"weight_decay": -1e-4}, "--weight-decay -0.0001: expected is 0 or more"),
        ({"momentum": -1.0}, "--momentum -1.0: expected is 0 or more"),
    ],
)
def test_number_without_a_meaning_is_refused(changes, words, monkeypatch, capsys):
    for name in ("LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.argv", ["/home/me/dataparallel.py"])
    with pytest.raises(SystemExit) as ended:
        check_arguments(arguments(**changes))
    assert ended.value.code == 2
    assert capsys.readouterr() == ("", f"dataparallel.py: error: {words}\n")


@pytest.mark.parametrize("changes", [{}, {"workers": 0, "epochs": 0, "lr": 0.0, "momentum": 0, "batch_size": 1}])
def test_other_numbers_pass(changes, capsys):
    check_arguments(arguments(**changes))
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("hosts", [1, 2])
def test_each_host_says_once_why_it_fails_and_which_it_is(hosts, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["distributed.py"])
    monkeypatch.setenv("WORLD_SIZE", str(3 * hosts))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    for rank in range(3 * hosts):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("LOCAL_RANK", str(rank % 3))
        with pytest.raises(SystemExit) as ended:
            fail("no such folder")
        assert ended.value.code == 2
    host = f"{socket.gethostname()}: " if hosts > 1 else ""
    assert capsys.readouterr() == ("", f"distributed.py: error: {host}no such folder\n" * hosts)


def test_process_that_torchrun_has_not_ended_meanwhile_speaks_for_itself(monkeypatch, capsys):
    waited = []
    monkeypatch.setattr("time.sleep", waited.append)
    monkeypatch.setattr("sys.argv", ["distributed.py"])
    for name, value in (("TORCHELASTIC_RUN_ID", "7"), ("WORLD_SIZE", "3"), ("LOCAL_WORLD_SIZE", "3")):
        monkeypatch.setenv(name, value)
    for rank, seconds in enumerate([0, 30, 30]):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        with pytest.raises(SystemExit) as ended:
            fail("no such folder")
        assert ended.value.code == 2
        assert sum(waited) == seconds
        waited.clear()
        assert capsys.readouterr() == ("", "distributed.py: error: no such folder\n")
