"""Ring 3, the standard series: the scripts start under every launcher, on whatever device there is, and end."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import TORCHRUN
from test_runs import of

VALIDATE = ["--arch", "shufflenet_v2_x0_5", "--batch-size", "4", "--print-freq", "100", "--evaluate", "--resume"]
LAUNCH = ["-m", "torch.distributed.launch"]


@pytest.fixture
def script(build_of):
    return build_of("--series", "standard") / "distributed.py"


@pytest.mark.parametrize(
    ("launcher", "options", "world"),
    [
        (
            [*TORCHRUN, "--nproc_per_node=2"],
            ["--local_rank", "0"],
            2,
        ),  # the environment wins over an old wrapper's flag
        ([*LAUNCH, "--nproc_per_node=2"], [], 2),  # passes --local-rank=N
        ([*LAUNCH, "--use_env", "--nproc_per_node=2"], [], 2),
        ([], [], 1),
    ],
    ids=["torchrun and a flag", "launch", "launch --use_env", "plain python"],
)
def test_each_process_takes_its_own_device_under_every_launcher(launcher, options, world, script, run, data, weights):
    if launcher[:2] == LAUNCH:
        launcher = [*launcher[:2], "--master_addr=127.0.0.1", "--master_port=29871", *launcher[2:]]
    result = run(*launcher, script, "--data", data, *VALIDATE, weights, *options, gpus=2)
    assert result.status == 0, result.err
    devices = {(e["rank"] or "0", e["index"]) for e in of(result, "set_device")}
    assert devices == {(str(rank), rank) for rank in range(world)}
    assert {e["world_size"] for e in of(result, "init_process_group")} == {world}
    out = "".join(result.outs)
    assert len(re.findall(r"^ \* Acc@1 [\d.]+ Acc@5 [\d.]+$", out, re.MULTILINE)) == 1
    expected = f"topology: hosts=1 processes={world} per_host={world} device=cuda:0 batch={4 // world} global_batch=4 "
    assert expected in out
    assert ("no launcher: this one process is the whole world" in out) == (world == 1)
    assert "destroy_process_group" not in result.err


def test_two_tasks_of_srun_are_one_world(script, data, weights, tmp_path):
    # SLURM's variables as srun sets them for one step of two tasks on one node; there is no SLURM here.
    step = {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NODEID": "0",
        "OMP_NUM_THREADS": "1",
    }
    tasks = [
        subprocess.Popen(
            [sys.executable, script, "--data", data, *VALIDATE, weights],
            cwd=tmp_path,
            env={**os.environ, **step, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outs = [task.communicate(timeout=120)[0] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0]
    assert "topology: hosts=1 processes=2 per_host=2 device=cpu batch=2 global_batch=4 " in outs[0]
    assert outs[1] == ""


@pytest.mark.parametrize(
    ("gpus", "device"), [(None, "cpu"), (0, "cpu"), (2, "cuda:0"), (8, "cuda:0")], ids=["no stand-in", "0", "2", "8"]
)
def test_two_ranks_run_on_what_there_is(gpus, device, script, run, data, weights):
    result = run(*TORCHRUN, "--nproc_per_node=2", script, "--data", data, *VALIDATE, weights, gpus=gpus)
    assert result.status == 0, result.err
    assert f"processes=2 per_host=2 device={device} batch=2 global_batch=4 " in result.outs[0]
    indices = sorted(e["index"] for e in of(result, "set_device"))
    assert indices == ([0, 1] if device != "cpu" else [])


def test_more_processes_than_gpus_are_one_line(script, run, data, weights, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    start = time.monotonic()
    result = run(*TORCHRUN, "--nproc_per_node=2", script, "--data", data, *VALIDATE, weights, gpus=1)
    assert result.status != 0
    line = "distributed.py: error: 2 processes on this node, 1 GPUs visible (CUDA_VISIBLE_DEVICES=3)\n"
    assert result.err.count(line) == 1
    assert 'File "' not in "".join(result.errs)
    assert of(result, "init_process_group") == []
    assert time.monotonic() - start < 60


@pytest.mark.parametrize(
    ("options", "gpus", "device"),
    [((), None, "cpu"), (("--device", "cpu"), 2, "cpu"), ((), 2, "cuda:0"), (("--gpus", "1"), 2, "cuda:1")],
)
def test_dataparallel_runs_on_what_there_is(options, gpus, device, build_of, run, data, weights):
    result = run(build_of() / "dataparallel.py", "--data", data, *VALIDATE, weights, *options, gpus=gpus)
    assert result.status == 0, result.err
    assert f"device={device} " in result.outs[0]
    assert " * Acc@1 " in result.outs[0]
    assert bool(of(result, "DataParallel")) == (device != "cpu")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-j", "-1"], "--workers -1: expected is 0 or more"),
        (["--expect-world", "4"], "--expect-world 4: the processes of this job are 2\n"),
        (["--pretrained"], "--pretrained: cannot get https://download.pytorch.org/models/"),
    ],
)
def test_what_cannot_work_is_one_line_of_two_ranks(options, words, script, run, data, weights, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "nothing here"))
    for scheme in ("http", "https"):
        monkeypatch.setenv(f"{scheme}_proxy", "http://127.0.0.1:9")  # no network
    command = [script, "--data", data, *VALIDATE, weights, *options]
    result = run(*TORCHRUN, "--nproc_per_node=2", *command, gpus=2)
    assert result.status != 0 and "exitcode  : 2" in result.err
    # Where torch.hub says what it downloads, on which stream, depends on the version.
    said = "".join(result.errs).splitlines(keepends=True)
    lines = [line for line in said if not line.startswith(("stand-in: ", "Downloading: "))]
    assert len(lines) == 1 and lines[0].startswith(f"distributed.py: error: {words}"), lines
    assert all(line.startswith("Downloading: ") for line in "".join(result.outs).splitlines())
    assert list(result.folder.iterdir()) == []


def test_host_that_alone_has_no_data_says_so_once_and_names_itself(script, data, weights, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    endpoint = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=data"]
    logs, agents = [tmp_path / "good", tmp_path / "bad"], []
    for log, folder in zip(logs, (data, tmp_path / "nothing")):
        with log.open("w") as file:
            agent = [sys.executable, *TORCHRUN, "--nnodes=2", "--nproc_per_node=2", *endpoint]
            agents.append(
                subprocess.Popen(
                    [*agent, script, "--data", folder, *VALIDATE, weights],
                    cwd=tmp_path,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                )
            )
    try:
        assert agents[1].wait(timeout=120) == 1
    finally:  # the other host may wait for this one, as torch does for half an hour
        for agent in agents:
            agent.terminate()
            agent.wait(timeout=60)
    lines = [[line for line in log.read_text().splitlines() if "distributed.py: error: " in line] for log in logs]
    start = f"distributed.py: error: {socket.gethostname()}: {tmp_path}/nothing/train: there are no class folders; "
    assert lines[0] == [] and len(lines[1]) == 1 and lines[1][0].startswith(start)


def test_device_that_is_not_there_is_one_line(build_of, run, data, weights):
    result = run(build_of() / "dataparallel.py", "--data", data, *VALIDATE, weights, "--device", "cuda", gpus=0)
    assert result.status == 2
    assert "dataparallel.py: error: --device cuda: there is none here, or none is visible\n" in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize("name", ["distributed.py", "dataparallel.py"])
def test_help_is_there_without_having_imported_the_compiler(name, build_of, run):
    code = (
        "import atexit, runpy, sys; sys.argv = sys.argv[1:]; "
        "atexit.register(lambda: print('torch._dynamo' in sys.modules)); "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    for option, imported in (("--help", False), ("--epochs=none", True)):
        result = run("-c", code, build_of() / name, option, gpus=None)
        assert result.status == (2 if imported else 0)
        assert ("resnet18" in result.outs[0]) != imported  # names of models
        assert result.outs[0].splitlines()[-1] == str(imported)


def ranks_of(agent: int) -> set[int]:
    """The processes whose parent is this one."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[1]) == agent:
                found.add(int(stat.parent.name))
        except OSError:  # it has ended meanwhile
            pass
    return found


def test_ranks_end_when_the_agent_is_killed(script, data, tmp_path):
    command = [sys.executable, *TORCHRUN, "--nproc_per_node=2", script, "--data", data, "--epochs", "1000"]
    agent = subprocess.Popen(
        [*command, "--arch", "shufflenet_v2_x0_5", "--batch-size", "4", "--print-freq", "1"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    ranks = set()
    try:
        for line in agent.stdout:  # until they train
            if line.startswith("Epoch: [0][1/"):
                break
        ranks = ranks_of(agent.pid)
        assert len(ranks) == 2
        agent.send_signal(signal.SIGKILL)
        agent.wait()
        deadline = time.monotonic() + 30
        while any(Path(f"/proc/{rank}").exists() for rank in ranks):
            assert time.monotonic() < deadline, "orphans train on"
            time.sleep(0.2)
    finally:
        agent.kill()
        for rank in ranks:
            if Path(f"/proc/{rank}").exists():
                os.kill(rank, signal.SIGKILL)
        agent.stdout.close()
