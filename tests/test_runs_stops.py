"""Ring 3: the table in docs/training.md, "What stops a job", row by row, with one rank and with
two.

What is saved and which status follows stand in the table. A row without a scenario fails, and so
does one that has come out otherwise. `tests/faults` strikes; a job makes six steps in two epochs,
see `test_runs_faults`.
"""

import os
import re
import signal
import time

import pytest
from jobs import REPO, running, wait_for
from test_runs_faults import FILES, STEPS, begin, data, difference, launched, state, whole  # noqa: F401

torch = pytest.importorskip("torch")

SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU")
NOTHING_TO_SAVE = re.compile(
    r"stopped by SIG\w+ before the first step: there was nothing to save\n"
)
SAVED = "stopped by a signal, and saved: --resume auto goes on from here\n"


def table():
    """The rows below the heading, by their first cell: what is saved, and the status."""
    page = (REPO / "docs/training.md").read_text()
    lines = (
        page.partition("### What stops a job")[2].partition("\n\nPython's status")[0].splitlines()
    )
    rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in lines
        if line.startswith("| ")
    ]
    return {what: (saved, status) for what, saved, status in rows[1:]}


def made(end) -> int:
    """How many steps a run that resumes finds done, of the whole job."""
    ((epochs, steps),) = re.findall(r": (\d+) epochs and (\d+) steps done", end.outs[0])
    return int(epochs) * STEPS + int(steps)


SCENARIOS = {}


def row(start):
    """Registers a function that tries what stands in the rows that begin so."""

    def register(function):
        SCENARIOS[start] = function
        return function

    return register


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.thorough), 2])
@pytest.mark.parametrize("what", table())
def test_job_stops_as_the_table_says(what, ranks, request):
    scenario = next((SCENARIOS[start] for start in SCENARIOS if what.startswith(start)), None)
    assert scenario, f"no scenario tries: {what}"
    saved, status = table()[what]
    names = scenario.__code__.co_varnames[1 : scenario.__code__.co_argcount]
    seen = scenario(ranks, *map(request.getfixturevalue, names))
    assert {one for one, _ in seen} == {saved.partition(";")[0].partition(":")[0]}
    assert {one for _, one in seen} == set(map(int, status.split(",")))


def test_every_scenario_is_a_row():
    assert [
        start for start in SCENARIOS if sum(what.startswith(start) for what in table()) != 1
    ] == []


def left(end, steps, begin, whole, ranks):
    """What is saved of `steps` that were made, in the words of the table, and that the rest is
    right.
    """
    resumed = begin("--resume", "auto", folder=end.folder, ranks=ranks)()
    assert resumed.statuses == [0] * ranks, resumed
    for name in (FILES[0], FILES[2]):
        assert not (why := difference(state(resumed.folder / name), whole(ranks)[name])), why
    return "all steps" if made(resumed) == steps else "the last save stays"


def stopped(ranks, plans, begin, whole, steps):
    """(saved, status) of each rank of jobs that are struck by these plans."""
    seen = []
    for plan, end in [(plan, begin("--save-every", 2, fault=plan, ranks=ranks)) for plan in plans]:
        ended = end()
        assert ended.outs[0].endswith(SAVED) and not any(ended.errs), (plan, ended)
        assert not (ended.folder / "run.lock").exists()
        saved = left(ended, steps, begin, whole, ranks)
        seen += [(saved, status) for status in ended.statuses]
    return seen


@row("SIGTERM, SIGINT (Ctrl-C)")
def to_one_or_all(ranks, begin, whole):
    """A4, A13: schedulers and people."""
    who = [[0], [ranks - 1], [*range(ranks)]]
    pairs = [*zip(SIGNALS, who * 2), *((SIGNALS[0], to) for to in who[1:])]
    plans = [
        {"at": "step", "nth": 3, "rank": to[-1], "to": to, "do": name, "rest": True}
        for name, to in pairs
    ]
    return stopped(ranks, plans, begin, whole, 3)


@row("one of them in a validation")
def in_a_validation(ranks, begin, whole):
    plans = [
        {"at": "validation", "nth": 1, "rank": ranks - 1, "do": name, "rest": True}
        for name in ("SIGTERM", "SIGHUP")
    ]
    return stopped(ranks, plans, begin, whole, STEPS)


@row("one of them before the first step")
def before_the_first_step(ranks, begin, whole, tmp_path):
    """A10."""
    torch.save(whole()[FILES[0]], tmp_path / "weights.pth.tar")
    ends = [
        begin(fault={"at": "start", "rank": ranks - 1, "do": name}, ranks=ranks)
        for name in SIGNALS[:3]
    ]
    options = ["--evaluate", "--resume", tmp_path / "weights.pth.tar"]
    plan = {"at": "validation", "rank": ranks - 1, "do": "SIGTERM", "rest": True}
    ends.append(begin(*options, fault=plan, ranks=ranks))
    seen = []
    for ended in (end() for end in ends):
        assert NOTHING_TO_SAVE.search(ended.outs[0]) and not any(ended.errs), ended
        assert not list(ended.folder.iterdir())
        seen += [("nothing", status) for status in ended.statuses]
    return seen


@row("a signal that was ignored")
def ignored(ranks, begin, whole):
    """A4: `nohup` lets a process ignore SIGHUP."""
    plan = {"at": "step", "nth": 3, "rank": ranks - 1, "to": [*range(ranks)], "do": "SIGHUP"}
    return goes_on(begin(fault=plan, ranks=ranks, IGNORED="SIGHUP")(), ranks, whole)


def goes_on(end, ranks, whole):
    for name in FILES[::2]:
        assert not (why := difference(state(end.folder / name), whole(ranks)[name])), why
    return [("the job goes on", status) for status in end.statuses]


def interrupted(ranks, begin, until, plan):
    """A job whose last rank does not get on in a step, and hears Ctrl-C, as all do, until
    `until(err of rank 0)`.
    """
    end = begin("--save-every", 2, fault=plan, ranks=ranks)
    wait_for((end.logs / "fired").exists)
    pids = [int((end.logs / str(rank)).read_text()) for rank in range(ranks)]
    while not until((end.logs / "err.0").read_text()) and any(map(running, pids)):
        for pid in filter(running, pids):
            os.kill(pid, signal.SIGINT)
        time.sleep(1.5)
    return end


@row("Ctrl-C again")
def ctrl_c_twice(ranks, begin, whole):
    """A9."""
    plan = {"at": "step", "nth": 3, "when": "after", "rank": ranks - 1, "do": "wait"}
    end = interrupted(
        ranks, begin, lambda err: "press Ctrl-C again to quit without saving" in err, plan
    )
    (end.logs / "go").touch()
    ended = end()
    assert ended.outs[0].endswith(SAVED)
    saved = left(ended, 3, begin, whole, ranks)
    return [(saved, status) for status in ended.statuses]


@row("Ctrl-C a third time")
def ctrl_c_three_times(ranks, begin, whole):
    """A9."""
    end = interrupted(
        ranks, begin, lambda err: False, {"at": "step", "nth": 5, "rank": ranks - 1, "do": "sleep"}
    )
    ended = end()
    assert "quit without saving" in ended.errs[0] and not (ended.folder / "run.lock").exists()
    saved = left(ended, 4, begin, whole, ranks)
    return [(saved, status) for status in ended.statuses]


@row("SIGKILL, or SIGQUIT")
def killed(ranks, begin, whole):
    seen = []
    for name in ("SIGKILL", "SIGQUIT"):
        plan = {"at": "step", "nth": 5, "rank": ranks - 1, "to": [*range(ranks)], "do": name}
        ended = begin("--save-every", 2, fault=plan, ranks=ranks)()
        saved = left(ended, 4, begin, whole, ranks)
        seen += [(saved, status) for status in ended.statuses]
    return seen


@row("an error on one rank")
def error(ranks, begin, whole):
    """A6."""
    ended = begin(
        "--save-every",
        2,
        fault={"at": "step", "nth": 5, "rank": ranks - 1, "do": "raise"},
        ranks=ranks,
    )()
    assert "Traceback (most recent call last):" in ended.errs[ranks - 1]
    saved = left(ended, 4, begin, whole, ranks)
    return [(saved, ended.statuses[ranks - 1])]


@row("a rank that hangs")
def hung(ranks, begin, whole):
    plan = {"at": "image", "nth": 4 * 8 // ranks + 1, "rank": ranks - 1, "do": "sleep"}
    ended = begin("--save-every", 2, "--timeout", 5, fault=plan, ranks=ranks)()
    said = "".join(ended.errs)
    assert f"error: rank {ranks - 1} hangs: nothing has moved for --timeout 5 s" in said, said
    saved = left(ended, 4, begin, whole, ranks)
    return (
        [(saved, 1)] if 1 in ended.statuses and all(ended.statuses) else [(saved, ended.statuses)]
    )


@row("the reader of its output")
def nobody_reads(ranks, begin, whole):
    """A13."""
    seen = goes_on(begin(ranks=ranks, OUT="/dev/full")(), ranks, whole)
    return seen + goes_on(begin(ranks=ranks, OUT="closed pipe")(), ranks, whole)


@row("an option, the data or another rank")
def does_not_fit(ranks, begin, tmp_path):
    seen = []
    for options in (["--lr", "-1"], ["--data", tmp_path], ["--device", "cuda:7"]):
        ended = begin(*options, ranks=ranks)()
        assert (
            len([line for err in ended.errs for line in err.splitlines() if ": error: " in line])
            == 1
        ), ended
        assert not ended.folder.exists() or not list(ended.folder.iterdir())
        seen += [("nothing has begun", ended.statuses[0])]
    return seen


@row("the launcher is gone")
def launcher_gone(ranks, launched, begin, whole):
    plan = {"at": "step", "nth": 3, "rank": ranks - 1, "to": "agent", "do": "SIGKILL", "rest": True}
    ended = launched(fault=plan, ranks=ranks)
    (out,) = filter(None, ended.outs)
    assert out.endswith(SAVED)
    saved = left(ended, 3, begin, whole, ranks)
    return [(saved, 75)]  # nobody hears the status: the line stands for it
