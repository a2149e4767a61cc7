"""How a process finds its place in the job, says what the job is, and leaves it."""

import argparse
import os
import signal
import threading

import pytest

torch = pytest.importorskip("torch")

from patches.support import launch  # noqa: E402

PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SLURM = ("JOB_ID", "STEP_NUM_TASKS", "STEP_TASKS_PER_NODE", "STEP_NODELIST", "NODEID")


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Puts variables into an environment without a launcher, which comes back afterwards."""
    others = [f"SLURM_{name}" for name in (*SLURM, "PROCID", "LOCALID")]
    for name in (*PLACE, *others, "TORCHELASTIC_RUN_ID"):
        monkeypatch.setenv(name, "")  # so that it is remembered, whoever sets it in between
        monkeypatch.delenv(name)
    monkeypatch.setattr("sys.argv", ["distributed.py"])
    return lambda **variables: [monkeypatch.setenv(*pair) for pair in variables.items()]


def joined(local_rank=-1):
    """`args.local_rank` afterwards, and the place in the environment."""
    args = argparse.Namespace(local_rank=local_rank)
    assert launch.join(args) is None
    assert set(vars(args)) == {"local_rank"}
    return args.local_rank, *map(os.environ.get, PLACE)


@pytest.mark.parametrize("given, local_rank", [(-1, 0), (0, 0), (2, 2)])
def test_process_without_a_launcher_is_the_whole_job(given, local_rank, capsys):
    assert joined(given) == (local_rank, "0", "1", str(local_rank), "1", "127.0.0.1", "0")
    assert capsys.readouterr() == ("no launcher: running as a single process\n", "")


def test_environment_wins_over_the_option_that_wrappers_pass_alike_to_all(environment, capsys):
    environment(RANK="5", WORLD_SIZE="8", LOCAL_RANK="1", LOCAL_WORLD_SIZE="4")
    assert joined(0) == (1, "5", "8", "1", "4", None, None)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("given, local_rank", [(-1, 0), (1, 1)])
def test_option_is_used_if_the_launcher_says_no_local_rank(environment, given, local_rank):
    environment(RANK="1", WORLD_SIZE="2")
    assert joined(given)[:4] == (local_rank, "1", "2", str(local_rank))


@pytest.mark.parametrize(
    "tasks, hosts, host, per_host, first",
    [
        ("2", "localhost", 0, "2", "localhost"),
        ("4(x2),3", "node[07-09,12]", 2, "3", "node07"),
        ("4(x2),3", "node[07-09,12]", 1, "4", "node07"),
        ("1,8(x3)", "gpu-1,gpu-2,gpu-[3-4]", 3, "8", "gpu-1"),
        ("2(x2)", "rack[3,5]-ib", 1, "2", "rack3-ib"),
    ],
)
def test_srun_says_it_in_words_of_its_own(environment, tasks, hosts, host, per_host, first, capsys):
    values = ("70001", "11", tasks, hosts, str(host))
    environment(**{f"SLURM_{name}": value for name, value in zip(SLURM, values)})
    environment(SLURM_PROCID="9", SLURM_LOCALID="1")
    assert joined() == (1, "9", "11", "1", per_host, first, "25001")
    assert capsys.readouterr() == ("", "")


def test_address_that_the_user_has_set_stays_under_srun(environment):
    environment(MASTER_ADDR="10.0.0.1", MASTER_PORT="29500", SLURM_PROCID="0", SLURM_LOCALID="0")
    values = ("7", "1", "1", "n1", "0")
    environment(**{f"SLURM_{name}": value for name, value in zip(SLURM, values)})
    assert joined()[-2:] == ("10.0.0.1", "29500")


@pytest.mark.parametrize(
    "expected, world, words",
    [
        (4, "2", "--expect-world 4: this job has 2 processes"),
        (2, None, "--expect-world 2: this job has 1 process"),
        (2, "2", None),
        (None, "2", None),
        (1, None, None),
    ],
)
def test_job_of_another_size_is_refused(environment, expected, world, words, capsys):
    if world:
        environment(WORLD_SIZE=world)
    args = argparse.Namespace(expect_world=expected)
    if words is None:
        launch.check_world(args)
        assert capsys.readouterr() == ("", "")
        return
    with pytest.raises(SystemExit) as ended:
        launch.check_world(args)
    assert ended.value.code == 2
    assert capsys.readouterr() == ("", f"distributed.py: error: {words}\n")


def test_any_size_is_expected_by_default():
    parser = argparse.ArgumentParser()
    launch.add_options(parser)
    assert vars(parser.parse_args([])) == {"expect_world": None}
    assert parser.parse_args(["--expect-world", "16"]).expect_world == 16


def test_rank_zero_says_in_one_line_what_the_job_is(environment, capsys):
    args = argparse.Namespace(batch_size=32, lr=0.1, workers=3)
    for rank in ("0", "1"):
        environment(RANK=rank, WORLD_SIZE="8", LOCAL_WORLD_SIZE="4")
        launch.print_topology(torch.nn.Linear(1, 1), args)
    expected = "topology: hosts=2 processes=8 per_host=4 device=cpu batch=32 global_batch=256 lr=0.1 workers=3\n"
    assert capsys.readouterr() == (expected, "")


@pytest.mark.parametrize("torchrun", [False, True])
def test_sigterm_ends_the_process_in_order_and_torchrun_is_watched(environment, torchrun, monkeypatch):
    watched = []
    monkeypatch.setattr(launch, "end_with", watched.append)
    if torchrun:
        environment(TORCHELASTIC_RUN_ID="7")
    mine = signal.getsignal(signal.SIGTERM)
    try:
        launch.watch_launcher()
        with pytest.raises(SystemExit) as ended:
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait(10)
        assert ended.value.code == 143
    finally:
        signal.signal(signal.SIGTERM, mine)
    assert watched == [os.getppid()] * torchrun


def test_process_whose_launcher_is_gone_ends_by_force_if_need_be(monkeypatch):
    events = []
    parents = iter([7, 7, 1])
    monkeypatch.setattr("os.getppid", lambda: next(parents))
    monkeypatch.setattr("time.sleep", lambda seconds: events.append(f"waits {seconds}"))
    monkeypatch.setattr("os.kill", lambda pid, number: events.append(f"sends {number:d}"))
    monkeypatch.setattr("os._exit", lambda status: events.append(f"ends {status}"))
    launch.end_with(7, patience=10)
    assert events == ["waits 1", "waits 1", "sends 15", "waits 10", "ends 143"]


@pytest.mark.parametrize("initialized", [False, True])
def test_process_group_is_left_if_there_is_one(initialized, monkeypatch):
    left = []
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: initialized)
    monkeypatch.setattr("torch.distributed.destroy_process_group", lambda: left.append(True))
    launch.leave_process_group()
    assert left == [True] * initialized
