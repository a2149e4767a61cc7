"""How a process finds its place in the job, says what the job is, and leaves it."""

import argparse
import os
import sys
import time
from types import SimpleNamespace

import pytest
from conftest import ending as last_line

torch = pytest.importorskip("torch")

from patches.support import ending, launch, ranks, stop  # noqa: E402

PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
ADDRESS = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
PREFIXES = (
    "MASTER_",
    "TORCHELASTIC_",
    "SLURM_",
    "OMPI_",
    "MV2_",
    "PMI",
    "MPI_",
    "PALS_",
    "HOROVOD_",
    "FLUX_",
    "JSM_",
)


def slurm(job, world, tasks, hosts, host, rank, local_rank):
    """What `srun` says to one of its processes."""
    names = (
        "JOB_ID",
        "STEP_NUM_TASKS",
        "STEP_TASKS_PER_NODE",
        "STEP_NODELIST",
        "NODEID",
        "PROCID",
        "LOCALID",
    )
    return {
        f"SLURM_{name}": str(value)
        for name, value in zip(names, (job, world, tasks, hosts, host, rank, local_rank))
    }


def mpi(launcher, *place):
    """What an `mpirun` says to one of its processes: rank, size, local rank, local size."""
    return dict(zip(launch.LAUNCHERS[launcher], map(str, place)))


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Puts variables into an environment without a launcher, which comes back afterwards."""
    found = [
        name for name in os.environ if name.startswith(PREFIXES) or launch.A_RANK.fullmatch(name)
    ]
    for name in {*PLACE, *found, "CUDA_VISIBLE_DEVICES"}:
        monkeypatch.setenv(name, "")  # so that it is remembered, whoever sets it in between
        monkeypatch.delenv(name)
    monkeypatch.setattr("sys.argv", ["distributed.py"])
    monkeypatch.setattr("os.getppid", lambda: 15007)
    return lambda **variables: [monkeypatch.setenv(*pair) for pair in variables.items()]


def joined(local_rank=-1):
    """`args.local_rank` afterwards, and the place in the environment."""
    args = argparse.Namespace(local_rank=local_rank)
    assert launch.join(args) is None
    assert set(vars(args)) == {"local_rank"}
    return args.local_rank, *map(os.environ.get, PLACE)


# Who has started this process


@pytest.mark.parametrize("given, local_rank", [(-1, 0), (0, 0), (2, 2)])
def test_process_without_a_launcher_is_the_whole_job(given, local_rank, capsys):
    assert joined(given) == (local_rank, "0", "1", str(local_rank), "1", "127.0.0.1", "0")
    assert capsys.readouterr() == ("no launcher: running as a single process\n", "")


def test_environment_wins_over_the_option_that_wrappers_pass_alike_to_all(environment, capsys):
    environment(RANK="5", WORLD_SIZE="8", LOCAL_RANK="1", LOCAL_WORLD_SIZE="4", **ADDRESS)
    assert joined(0) == (1, "5", "8", "1", "4", "node1", "29500")
    assert capsys.readouterr() == ("", "")


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
    environment(**slurm(70001, 11, tasks, hosts, host, 9, 1))
    assert joined() == (1, "9", "11", "1", per_host, first, "25001")
    assert capsys.readouterr() == ("", "")


def test_address_that_the_user_has_set_stays_under_srun(environment):
    environment(MASTER_ADDR="10.0.0.1", MASTER_PORT="29501", **slurm(7, 1, 1, "n1", 0, 0, 0))
    assert joined()[-2:] == ("10.0.0.1", "29501")


TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", **ADDRESS}
STEP = slurm(70001, 4, "2(x2)", "n[1-2]", 1, 3, 1)
DAEMON = slurm(70001, 2, "1(x2)", "n[1-2]", 1, 1, 0)  # of mpirun below SLURM, one on each host
SCRIPT = {
    "SLURM_PROCID": "0",
    "SLURM_JOB_ID": "70001",
    "SLURM_NODEID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "4",
}


@pytest.mark.parametrize(
    "variables, place",
    [
        (TORCHRUN, ("3", "4", "1", "2", "node1", "29500")),
        (
            {**TORCHRUN, **STEP, **mpi("Open MPI", 0, 2, 0, 1)},
            ("3", "4", "1", "2", "node1", "29500"),
        ),  # torchrun in it
        # PyTorchJob in Kubernetes: one process on each host, and nothing of the host.
        ({"RANK": "1", "WORLD_SIZE": "2", **ADDRESS}, ("1", "2", "0", "1", "node1", "29500")),
        (STEP, ("3", "4", "1", "2", "n1", "25001")),
        (
            {**STEP, "PMI_RANK": "3", "PMI_SIZE": "4", "PMIX_RANK": "3"},
            ("3", "4", "1", "2", "n1", "25001"),
        ),
        (mpi("Open MPI", 1, 2, 1, 2), ("1", "2", "1", "2", "127.0.0.1", "15007")),
        (
            {**mpi("Open MPI", 1, 2, 1, 2), "PMIX_RANK": "1"},
            ("1", "2", "1", "2", "127.0.0.1", "15007"),
        ),
        ({**mpi("Open MPI", 3, 4, 1, 2), **ADDRESS}, ("3", "4", "1", "2", "node1", "29500")),
        (
            {**mpi("Open MPI", 3, 4, 1, 2), **DAEMON, **ADDRESS},
            ("3", "4", "1", "2", "node1", "29500"),
        ),
        ({**mpi("MVAPICH2", 3, 4, 1, 2), **ADDRESS}, ("3", "4", "1", "2", "node1", "29500")),
        (mpi("MPICH or Intel MPI", 0, 2, 0, 2), ("0", "2", "0", "2", "127.0.0.1", "15007")),
        (
            {**mpi("MPICH or Intel MPI", 3, 4, 1, 2), **DAEMON, **ADDRESS},
            ("3", "4", "1", "2", "node1", "29500"),
        ),
        # A batch script of SLURM has a few of its variables, and is no step of srun.
        (SCRIPT, ("0", "1", "0", "1", "127.0.0.1", "0")),
        (
            {"PMIX_RANK": "", "MY_RANK": "first", "RANKING": "1"},
            ("0", "1", "0", "1", "127.0.0.1", "0"),
        ),
    ],
)
def test_place_is_taken_from_every_launcher_that_says_all_of_it(environment, variables, place):
    """B6: mpirun, PyTorchJob and srun start one job, not one for each process."""
    environment(**variables)
    assert joined() == (int(place[2]), *place)


@pytest.mark.parametrize("given, place", [(-1, ("1", "2", "0", "1")), (1, ("1", "2", "1", "2"))])
def test_option_says_what_an_old_launcher_does_not(environment, given, place):
    """B6: an old launcher passes --local_rank and starts one host; without it each process is alone
    on its host.
    """
    environment(RANK="1", WORLD_SIZE="2", **ADDRESS)
    assert joined(given)[1:5] == place


@pytest.mark.parametrize(
    "name",
    [
        "PMIX_RANK",
        "HOROVOD_RANK",
        "FLUX_TASK_RANK",
        "JSM_NAMESPACE_RANK",
        "PALS_RANKID",
        "PMI_RANK",
        "X_PROCID",
    ],
)
@pytest.mark.parametrize("function", [launch.join, launch.check_single])
def test_launcher_that_is_not_known_is_refused_by_its_variable(environment, name, function, capsys):
    """B6: N processes of a launcher that says it in other words would be N trainings."""
    environment(**{name: "1", **SCRIPT})
    line = last_line(capsys, function, argparse.Namespace(local_rank=-1))
    assert line == (
        f"distributed.py: error: {name}=1 is set, by an unknown launcher: start this with torchrun, srun or "
        "mpirun, set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or unset it"
    )


@pytest.mark.parametrize("launcher", launch.LAUNCHERS)
@pytest.mark.parametrize("address", [{}, {"MASTER_ADDR": "node1"}, {"MASTER_PORT": "29500"}])
def test_mpirun_on_several_hosts_needs_an_address(environment, launcher, address, capsys):
    """B6: mpirun does not say where its first process is; that is asked for, once on each host."""
    environment(**mpi(launcher, 2, 4, 0, 2), **address)
    line = last_line(capsys, launch.join, argparse.Namespace(local_rank=-1))
    assert f": mpirun of {launcher} has started this job on several hosts: pass " in line


@pytest.mark.parametrize(
    "variables, words",
    [
        ({"RANK": "first", "WORLD_SIZE": "2", **ADDRESS}, "RANK=first: expected a number"),
        (
            {"RANK": "0", "WORLD_SIZE": "", "LOCAL_RANK": "x", **ADDRESS},
            "WORLD_SIZE=, LOCAL_RANK=x: expected a number",
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "-2", **ADDRESS},
            "LOCAL_WORLD_SIZE=-2: expected a number",
        ),
    ],
)
@pytest.mark.parametrize("function", [launch.join, launch.check_single])
def test_rank_that_is_no_number_is_one_line(environment, variables, words, function, capsys):
    """B6: what a launcher says is read before anything asks for it."""
    environment(**variables)
    line = last_line(capsys, function, argparse.Namespace(local_rank=-1))
    assert line == f"distributed.py: error: {words}"


@pytest.mark.parametrize(
    "variables, words",
    [
        (
            {"WORLD_SIZE": "1"},
            "RANK is set: set WORLD_SIZE, MASTER_ADDR and MASTER_PORT too, or none",
        ),
        (ADDRESS, "RANK is set: set WORLD_SIZE, MASTER_ADDR and MASTER_PORT too, or none"),
        (
            {"WORLD_SIZE": "1", **ADDRESS, "MASTER_PORT": "tcp://10.0.0.1:80"},
            "MASTER_PORT=tcp://10.0.0.1:80: expected a",
        ),
    ],
)
def test_launcher_that_says_half_of_it_is_one_line(environment, variables, words, capsys):
    """B6: a rank without the size of the job, or the place to meet, cannot join."""
    environment(RANK="0", **variables)
    assert words in last_line(capsys, launch.join, argparse.Namespace(local_rank=-1))


@pytest.mark.parametrize("seen, local_rank", [("3", "1"), ("0,1,2,3", "0"), ("", "0"), (None, "0")])
def test_virtual_local_rank_of_torchrun_is_no_rank_on_the_host(environment, seen, local_rank):
    """B5: torchrun --virtual-local-rank says 0 to all, and the host still has one first process."""
    environment(
        RANK="5",
        WORLD_SIZE="8",
        LOCAL_RANK="0",
        LOCAL_WORLD_SIZE="4",
        TORCHELASTIC_RUN_ID="7",
        **ADDRESS,
    )
    environment(**{"CUDA_VISIBLE_DEVICES": seen} if seen is not None else {})
    launch.complete(os.environ, -1)
    assert os.environ["LOCAL_RANK"] == local_rank


@pytest.mark.parametrize(
    "variables, count",
    [
        ({}, 1),
        (SCRIPT, 1),
        ({"RANK": "0", "WORLD_SIZE": "1"}, 1),
        (slurm(7, 1, "1", "n1", 0, 0, 0), 1),
        (mpi("Open MPI", 0, 1, 0, 1), 1),
        (TORCHRUN | {"LOCAL_RANK": "0"}, 4),
        ({"RANK": "1", "WORLD_SIZE": "2"}, 2),
        (slurm(7, 2, "2", "n1", 0, 0, 0), 2),
        (mpi("MVAPICH2", 2, 4, 0, 2), 4),
        (mpi("MPICH or Intel MPI", 0, 2, 0, 2), 2),
    ],
)
def test_script_that_is_one_process_refuses_to_be_several(environment, variables, count, capsys):
    """B7: N copies would train on the same GPUs and write the same files."""
    environment(**variables)
    if count == 1:
        assert launch.check_single(argparse.Namespace()) is None
        assert capsys.readouterr() == ("", "")
        return
    line = last_line(capsys, launch.check_single, argparse.Namespace())
    assert (
        f"this script is one process on all GPUs, and {count} were started: start it with python"
        in line
    )


@pytest.mark.parametrize("local_rank, lines", [(0, 1), (1, 0)])
def test_copies_on_one_host_are_refused_in_one_line(environment, local_rank, lines, capsys):
    """B7: only the first copy of each host speaks, under mpirun as well."""
    environment(**mpi("Open MPI", local_rank, 2, local_rank, 2))
    with pytest.raises(SystemExit) as ended:
        launch.check_single(argparse.Namespace())
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == lines


# What the job is


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
    assert last_line(capsys, launch.check_world, args) == f"distributed.py: error: {words}"


def test_any_size_is_expected_by_default():
    parser = argparse.ArgumentParser()
    launch.add_options(parser)
    assert vars(parser.parse_args([])) == {"expect_world": None}
    assert parser.parse_args(["--expect-world", "16"]).expect_world == 16


class Images(list):
    classes = ["cat", "dog"]


def topology(train=60, val=7):
    loaders = [SimpleNamespace(dataset=Images(range(count))) for count in (train, val)]
    args = argparse.Namespace(batch_size=32, lr=0.1, workers=3)
    launch.print_topology(torch.nn.Linear(1, 1), *loaders, args)


def test_rank_zero_says_in_one_line_what_the_job_is(environment, capsys):
    """B2: with the numbers of classes and images, by which too many are seen."""
    for rank in ("0", "1"):
        environment(RANK=rank, WORLD_SIZE="8", LOCAL_WORLD_SIZE="4")
        topology()
    expected = (
        "topology: hosts=2 processes=8 per_host=4 device=cpu batch=32 global_batch=256 lr=0.1 workers=3 "
        "classes=2 images=60 val_images=7\n"
    )
    assert capsys.readouterr() == (expected, "")


def test_ranks_that_see_other_images_end_the_job(environment, monkeypatch, capsys):
    """A3: another number of images on one host would be another number of steps, and a hang."""
    environment(RANK="0", WORLD_SIZE="3")
    monkeypatch.setattr(ranks, "gathered", lambda value: [value, value, [59, 7]])
    line = last_line(capsys, topology)
    assert line == (
        "distributed.py: error: the ranks see other images: rank 0 has 60 in train/ and 7 in val/, rank 2 59 and 7"
    )


# How it ends


@pytest.mark.parametrize("torchrun", [False, True])
def test_torchrun_alone_is_watched(environment, torchrun, monkeypatch):
    watched = []
    monkeypatch.setattr(launch, "end_with", watched.append)
    environment(**TORCHRUN, **({"TORCHELASTIC_RUN_ID": "7"} if torchrun else {}))
    joined()
    end = time.monotonic() + 30
    while torchrun and not watched and time.monotonic() < end:
        time.sleep(0.01)
    assert watched == [15007] * torchrun


def test_job_whose_launcher_is_gone_stops_as_at_a_signal(monkeypatch):
    """A4: a launcher that dies of the same signal is no reason to lose the steps."""
    events, parents = [], iter([7, 7, 1])
    monkeypatch.setattr("os.getppid", lambda: next(parents))
    monkeypatch.setattr(
        launch, "time", SimpleNamespace(sleep=lambda seconds: events.append(f"waits {seconds}"))
    )
    monkeypatch.setattr(stop, "lose_launcher", lambda: events.append("stops"))
    launch.end_with(7)
    assert events == ["waits 1", "waits 1", "stops"]


class Gone(BaseException):
    """Stands for the end of the process."""


@pytest.fixture
def events(monkeypatch):
    """What `clean_exit` does, in its order, in a process group."""
    events = []

    def leave(status):
        events.append(("ends", status))
        raise Gone

    monkeypatch.setattr(ending, "at_once", leave)
    monkeypatch.setattr(ranks, "has_process_group", lambda: True)
    monkeypatch.setattr(
        "torch.distributed.destroy_process_group", lambda: events.append("destroys")
    )
    monkeypatch.setattr(launch, "time", SimpleNamespace(sleep=lambda seconds: None))
    return events


@pytest.mark.parametrize(
    "error", [RuntimeError("out of memory"), KeyboardInterrupt(), MemoryError()]
)
def test_error_is_printed_and_ends_the_process_without_the_other_ranks(
    events, error, capsys, monkeypatch
):
    """A6: to leave an NCCL group takes all ranks, so a rank with an error does not try."""
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    with pytest.raises(Gone), launch.clean_exit():
        raise error
    assert events == [("ends", 1)]
    _, err = capsys.readouterr()
    assert err.startswith("Traceback (most recent call last):") and "    raise error" in err
    assert type(error).__name__ in err.splitlines()[-1] and str(error) in err.splitlines()[-1]


@pytest.mark.parametrize("code, status", [(75, 75), (2, 2), (0, 0), (None, 0)])
def test_status_is_kept_where_the_script_ends_by_itself(events, code, status, capsys):
    """A6: a run that is stopped, or refused, ends with its status and no traceback."""
    with pytest.raises(Gone), launch.clean_exit():
        sys.exit(code)
    assert events == [("ends", status)]
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("grouped", [False, True])
def test_process_group_is_left_after_the_work_if_there_is_one(events, grouped, monkeypatch):
    """A6: only after success."""
    monkeypatch.setattr(ranks, "has_process_group", lambda: grouped)
    with launch.clean_exit():
        assert events == []
    assert events == ["destroys"] * grouped
