"""`support.job`: the ranks compare notes over a store before any of them trains."""

import argparse
import datetime
import random
import threading
import time
from types import SimpleNamespace

import pytest
from conftest import ending
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
dist = torch.distributed

from patches.support import job, ranks  # noqa: E402

OPTIONS = {
    "data": "data",
    "lr": 0.1,
    "batch_size": 256,
    "workers": 4,
    "timeout": 600.0,
    "local_rank": 0,
    "resume": "",
}
HOSTS = ("a", "a", "b")


@pytest.fixture
def notes(tmp_path, monkeypatch):
    """A function that gives the notes of three ranks on hosts a, a and b; rank 2 has something
    else.
    """
    monkeypatch.setattr("sys.argv", ["distributed.py"])
    for folder, classes in (("data", "cat dog"), ("other", "cat fox"), ("more", "cat dog fox")):
        for name in classes.split():
            (tmp_path / folder / "train" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)

    def note(rank, options=(), local=1, version=torch.__version__, world=3):
        with monkeypatch.context() as patch:
            patch.setenv("WORLD_SIZE", str(world))
            patch.setenv("LOCAL_WORLD_SIZE", str(local))
            patch.setattr(job.socket, "gethostname", lambda: HOSTS[rank])
            patch.setattr(torch, "__version__", version)
            patch.setattr(job, "only_gpu", lambda: None)
            return job.note(argparse.Namespace(**{**OPTIONS, **dict(options)}))

    return lambda common=None, **last: [
        note(0, **common or {}),
        note(1, **common or {}),
        note(2, **last),
    ]


class Killed(Exception):
    """The launcher has ended this start of the job."""


class Store:
    """A store in which each call takes another time, and whose users are all killed at call number
    `life`.
    """

    def __init__(self, shared, seed, life=None):
        self.shared, self.dice, self.life, self.calls = shared, random.Random(seed), life, 0

    def called(self, name, *args):
        self.calls += 1
        if self.life is not None and self.calls > self.life:
            raise Killed
        time.sleep(self.dice.random() / 2000)
        return getattr(self.shared, name)(*args)

    def set(self, *args):
        return self.called("set", *args)

    def get(self, *args):
        return self.called("get", *args)

    def check(self, *args):
        return self.called("check", *args)


def exchanged(store, notes, timeout=60, before=lambda rank: None):
    """What each rank with one of these notes gets from `exchange`: (start, answer), or its error."""
    here, got = threading.local(), {}

    def run(rank):
        here.rank = rank
        before(rank)
        try:
            got[rank] = job.exchange(store, notes[rank], timeout)
        except (RuntimeError, Killed) as error:
            got[rank] = error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "rank", lambda: here.rank)
        patch.setattr(ranks, "world_size", lambda: len(notes))
        quick = SimpleNamespace(
            monotonic=time.monotonic, sleep=lambda seconds: time.sleep(seconds / 50)
        )
        patch.setattr(job, "time", quick)
        threads = [
            threading.Thread(target=run, args=(rank,)) for rank in range(len(notes)) if notes[rank]
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return [got.get(rank) for rank in range(len(notes))]


def test_ranks_with_the_same_notes_go_on_with_one_id_of_this_start(notes):
    """A3: what may be another one on each host is no difference."""
    own = {"data": "./data", "workers": 2, "local_rank": 1, "resume": "auto", "output_dir": "runs"}
    got = exchanged(dist.HashStore(), notes({"options": {"output_dir": "out"}}, options=own))
    assert [answer for _, answer in got] == [{"wrong": None, "own_gpu": False}] * 3
    assert len({start for start, _ in got}) == 1


DIFFERENCES = [
    ({}, {"options": {"lr": 0.2}}, "--lr: 0.1 on rank 0 (a), 0.2 on rank 2 (b)"),
    ({}, {"options": {"batch_size": 128}}, "--batch-size: 256 on rank 0 (a), 128 on rank 2 (b)"),
    ({"local": 2}, {}, "processes on the host: 2 on rank 0 (a), 1 on rank 2 (b)"),
    ({}, {"world": 4}, "processes in the job: 3 on rank 0 (a), 4 on rank 2 (b)"),
    ({}, {"options": {"data": "more"}}, "classes in train/: 2 (names "),
    ({}, {"options": {"data": "other"}}, "classes in train/: 2 (names "),
    ({}, {"options": {"data": "nowhere"}}, "classes in train/: 2 (names "),
    ({"version": "2.4.1"}, {"version": "2.4.0"}, "torch: 2.4.1 on rank 0 (a), 2.4.0 on rank 2 (b)"),
]


@pytest.mark.parametrize("common, last, words", DIFFERENCES)
def test_all_ranks_hear_in_the_same_line_what_differs(notes, common, last, words):
    """A3: hosts with 2 and 1 processes had unequal steps, and hung until --timeout."""
    got = exchanged(dist.HashStore(), notes(common, **last))
    (text,) = {answer["wrong"] for _, answer in got}
    assert text.startswith(f"the ranks of this job differ: {words}") and "\n" not in text
    assert text.count(" on rank ") == 2


def test_all_that_differs_is_named(notes):
    """A3: two slips are mended after one run."""
    got = exchanged(dist.HashStore(), notes(options={"lr": 0.2, "timeout": 5.0}))
    assert got[1][1]["wrong"] == (
        "the ranks of this job differ: --lr: 0.1 on rank 0 (a), 0.2 on rank 2 (b); "
        "--timeout: 600.0 on rank 0 (a), 5.0 on rank 2 (b)"
    )


def test_launcher_that_says_another_number_of_processes_than_a_host_has_is_named(notes):
    """A3: all say 2, and host b has 1."""
    got = exchanged(dist.HashStore(), notes({"local": 2}, local=2))
    (text,) = {answer["wrong"] for _, answer in got}
    assert (
        text
        == "the ranks of this job differ: processes on the host b: 1, and LOCAL_WORLD_SIZE is 2"
    )


def host(name, gpu, local):
    return {"host": name, "gpu": gpu, "agreed": {"processes on the host": local}}


def test_two_launchers_on_one_machine_are_two_hosts():
    """A3: four processes of the name a, two for each torchrun, are in order."""
    assert {answer["wrong"] for answer in job.judged([host("a", None, 2)] * 4)} == {None}


@pytest.mark.parametrize(
    "gpus, own",
    [
        (["A", "B", "A", "B"], [True] * 4),
        (["A", "B", "A", "A"], [True, True, False, False]),
        (["A", "A", None, None], [False] * 4),
        (["A", None, "A", "B"], [False, False, True, True]),
    ],
)
def test_gpus_are_the_processes_own_if_each_on_the_host_sees_another_one(gpus, own):
    """B5: by the GPU, not by its number: each process calls its own one 0."""
    answers = job.judged([host(name, gpu, 2) for name, gpu in zip("xxyy", gpus)])
    assert [answer["own_gpu"] for answer in answers] == own
    assert {answer["wrong"] for answer in answers} == {None}


@pytest.mark.parametrize(
    "count, properties, known",
    [
        (0, {}, None),
        (2, {"uuid": "GPU-7"}, None),
        (1, {"uuid": "GPU-7"}, "GPU-7"),
        (1, {}, "3"),  # older torch
    ],
)
def test_one_gpu_is_known_by_what_no_other_has(count, properties, known, monkeypatch):
    """B5: under older torch by CUDA_VISIBLE_DEVICES."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    monkeypatch.setattr(
        "torch.cuda.get_device_properties", lambda index: SimpleNamespace(**properties)
    )
    assert job.only_gpu() == known


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_rank_that_does_not_come_is_named_by_all_others(missing):
    """A3: not an innocent one."""
    notes = [host("a", None, 1) for _ in range(3)]
    notes[missing] = None
    both = threading.Barrier(2)
    got = exchanged(dist.HashStore(), notes, 0.5, lambda rank: both.wait())
    assert {str(error) for error in got if error} == {f"rank {missing} has not come within 0.5 s"}


# A store that has seen other starts of the job

STARTS = st.lists(
    st.tuples(
        st.integers(2, 4),
        st.booleans(),
        st.one_of(st.none(), st.integers(1, 60)),
        st.integers(0, 999),
    ),
    min_size=1,
    max_size=4,
)


@given(STARTS, st.integers(2, 4), st.booleans())
@settings(deadline=None, max_examples=40)
def test_ranks_go_on_only_with_what_is_said_in_this_start(earlier, world, differs):
    """A11: whatever is left in the store by starts that went on, were refused, or were killed at
    any call.
    """
    shared, seen = dist.HashStore(), set()
    for size, differed, life, seed in [*earlier, (world, differs, None, 7)]:
        notes = [host("a", str(rank), size) for rank in range(size)]
        notes[-1]["agreed"]["processes on the host"] += differed
        got = exchanged(Store(shared, seed, life), notes)
        ended = [one for one in got if not isinstance(one, Killed)]
        assert all(isinstance(one, tuple) for one in ended)
        assert life is not None or len(ended) == size
        starts = {start for start, _ in ended}
        assert len(starts) <= 1 and not starts & seen
        for _, answer in ended:
            assert bool(answer["wrong"]) == differed and answer["own_gpu"]
        seen |= starts


def test_rank_that_comes_alone_does_not_go_on_with_what_an_earlier_start_has_said():
    """A11: an answer is for one process, not for a rank."""
    shared, notes = dist.HashStore(), [host("a", None, 2) for _ in range(2)]
    first = exchanged(Store(shared, 0), notes)
    assert exchanged(shared, [None, notes[1]], timeout=0.3)[1].args == (
        "rank 0 has not come within 0.3 s",
    )
    assert exchanged(shared, notes)[0][0] != first[0][0]


def test_ranks_wait_for_one_that_comes_after_they_were_answered_with_its_note_of_an_earlier_start():
    """A11: rank 1 is late, and all that it and others said before, up to the last word, is still
    there.
    """
    shared, notes = dist.HashStore(), [host("a", str(rank), 3) for rank in range(3)]
    first = exchanged(shared, notes)[0][0]

    def before(rank):
        end = time.monotonic() + 20
        while rank == 1 and time.monotonic() < end:
            if first != job.said(shared, "heard/0") == job.said(shared, "heard/2"):
                time.sleep(0.2)  # long enough to go on, if they did
                return
            time.sleep(0.01)

    got = exchanged(shared, notes, 20, before)
    assert got[0] == got[1] == got[2] and got[0][0] != first


# What this process does with the answer


@pytest.fixture
def meet(monkeypatch):
    """A function that calls `meet` as rank 0 of so many, with this end of the exchange; gives what
    it asked for.
    """
    asked = []
    monkeypatch.setattr("sys.argv", ["distributed.py"])
    monkeypatch.setattr(job, "_store", None)
    monkeypatch.setattr(job, "_has_own_gpu", False)
    monkeypatch.setattr(job, "note", lambda args: "note")
    for name, value in (
        ("RANK", 0),
        ("LOCAL_RANK", 0),
        ("MASTER_ADDR", "n1"),
        ("MASTER_PORT", 29500),
    ):
        monkeypatch.setenv(name, str(value))

    def run(exchange, world=2):
        monkeypatch.setenv("WORLD_SIZE", str(world))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(world))
        monkeypatch.setattr(job, "exchange", exchange)
        job.meet(argparse.Namespace(timeout=5.0))
        return asked

    def rendezvous(url, timeout):
        asked.append((url, timeout))
        return iter([(dist.HashStore(), 0, 2)])

    monkeypatch.setattr(dist, "rendezvous", rendezvous)
    return run


def test_one_process_has_nobody_to_meet(meet):
    assert meet(None, world=1) == []
    assert job.store() is None and not job.has_own_gpu()


def test_job_goes_on_with_keys_of_its_own(meet):
    """A11: what follows in the store has the id of this start in its name."""
    shared = []

    def exchange(store, mine, timeout):
        shared.append(store)
        assert (mine, timeout) == ("note", 25)
        return "1a2b", {"wrong": None, "own_gpu": True}

    assert meet(exchange) == [("env://", datetime.timedelta(seconds=25))]
    job.store().set("address", "here")
    assert not shared[0].check(["address"]) and job.has_own_gpu()
    assert dist.PrefixStore("1a2b", shared[0]).get("address") == b"here"


def test_what_differs_ends_the_job_in_one_line_when_all_have_heard_it(meet, monkeypatch, capsys):
    """A3: rank 0 waits, since the store may be its own."""
    waits = []
    monkeypatch.setattr(job, "time", SimpleNamespace(sleep=waits.append))
    answer = {"wrong": "the ranks of this job differ: x", "own_gpu": False}
    line = ending(capsys, meet, lambda *_: ("1a2b", answer))
    assert line == "distributed.py: error: the ranks of this job differ: x"
    assert waits == [1] and job.store() is None


def test_ranks_that_do_not_meet_end_in_one_line(meet, capsys):
    """A3: the line says where they should have met, and who has not come."""

    def alone(*_):
        raise RuntimeError("rank 1 has not come within 25 s\nC++ frames")

    line = ending(capsys, meet, alone)
    assert line == (
        "distributed.py: error: the ranks have not met at n1:29500, where rank 0 should be: "
        "rank 1 has not come within 25 s"
    )
