"""Ring 3, the standard series: the scripts start under every launcher, on whatever device there is,
and end.
"""

import os
import re
import shutil
import socket
import subprocess
import sys

import pytest
from jobs import FREE_PORT, PATIENCE, TORCHRUN, environment_of
from test_runs import of

VALIDATE = ["--arch", "tiny", "--batch-size", "4", "--workers", "0", "--print-freq", "100"]
VALIDATE += ["--evaluate", "--resume"]
LAUNCH = ["-m", "torch.distributed.launch"]


@pytest.fixture
def script(build_of):
    return build_of("--series", "standard") / "distributed.py"


@pytest.mark.parametrize(
    ("launcher", "options", "world"),
    [
        # The environment wins over an old wrapper's flag.
        ([*TORCHRUN, "--nproc_per_node=2"], ["--local_rank", "0"], 2),
        ([*LAUNCH, "--nproc_per_node=2"], [], 2),  # passes --local-rank=N
        pytest.param(
            [*LAUNCH, "--use_env", "--nproc_per_node=2"], [], 2, marks=pytest.mark.thorough
        ),
        pytest.param([], [], 1, marks=pytest.mark.thorough),
    ],
    ids=["torchrun and a flag", "launch", "launch --use_env", "plain python"],
)
def test_each_process_takes_its_own_device_under_every_launcher(
    launcher, options, world, script, command, data, weights
):
    if launcher[:2] == LAUNCH:
        launcher = [*LAUNCH, *FREE_PORT, *launcher[2:]]
    result = command(*launcher, script, "--data", data, *VALIDATE, weights, *options, gpus=2)
    assert result.status == 0, result.err
    devices = {(e["rank"] or "0", e["index"]) for e in of(result, "set_device")}
    assert devices == {(str(rank), rank) for rank in range(world)}
    assert {e["world_size"] for e in of(result, "init_process_group")} == {world}
    out = "".join(result.outs)
    assert len(re.findall(r"^ \* Acc@1 [\d.]+ Acc@5 [\d.]+$", out, re.MULTILINE)) == 1
    expected = f"topology: hosts=1 processes={world} per_host={world} device=cuda:0 batch={4 // world} global_batch=4 "
    assert expected in out
    assert out.count("no launcher: running as a single process\n") == (world == 1)
    resumed = f"resumed from {weights}: 1 epochs and 0 steps done, best Acc@1 10.000; there is no optimizer in it: "
    assert (
        out.count(f"{resumed}its momentum starts at zero\ntopology: ")
        == out.count("resumed from")
        == 1
    )
    assert "random weights" not in out
    assert "destroy_process_group" not in result.err


# Variables as srun sets them for one step of two tasks on one node, and as mpirun does; neither is
# here.
SRUN = {
    "SLURM_JOB_ID": str(os.getpid()),
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2",
    "SLURM_STEP_NODELIST": "localhost",
    "SLURM_NODEID": "0",
}
MPIRUN = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}


@pytest.mark.parametrize(
    ("of_all", "of_a_rank"),
    [
        (SRUN, ["SLURM_PROCID", "SLURM_LOCALID"]),
        pytest.param(
            MPIRUN,
            ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"],
            marks=pytest.mark.thorough,
        ),
    ],
    ids=["srun", "mpirun"],
)
def test_two_processes_of_another_launcher_are_one_world(
    of_all, of_a_rank, script, data, weights, tmp_path
):
    """B6: and not two trainings."""
    tasks = [
        subprocess.Popen(
            [sys.executable, script, "--data", data, *VALIDATE, weights],
            cwd=tmp_path,
            env=environment_of() | of_all | dict.fromkeys(of_a_rank, str(rank)),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outs = [task.communicate(timeout=PATIENCE)[0] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0]
    assert "topology: hosts=1 processes=2 per_host=2 device=cpu batch=2 global_batch=4 " in outs[0]
    assert outs[1] == ""


@pytest.mark.parametrize(
    ("gpus", "device"),
    [(None, "cpu"), (0, "cpu"), (2, "cuda:0"), (8, "cuda:0")],
    ids=["no stand-in", "0", "2", "8"],
)
def test_two_ranks_run_on_what_there_is(gpus, device, script, run, data, weights):
    result = run(script, "--data", data, *VALIDATE, weights, ranks=2, gpus=gpus)
    assert result.status == 0, result.err
    assert f"processes=2 per_host=2 device={device} batch=2 global_batch=4 " in result.outs[0]
    indices = sorted(e["index"] for e in of(result, "set_device"))
    assert indices == ([0, 1] if device != "cpu" else [])


def test_more_processes_than_gpus_are_one_line(script, run, data, weights):
    result = run(
        script, "--data", data, *VALIDATE, weights, ranks=2, gpus=1, CUDA_VISIBLE_DEVICES="3"
    )
    assert result.status != 0
    line = "distributed.py: error: 2 processes on this node, 1 GPUs visible (CUDA_VISIBLE_DEVICES=3); start fewer, or "
    assert result.err.count(line) == 1
    assert 'File "' not in "".join(result.errs)
    assert of(result, "init_process_group") == []


@pytest.mark.parametrize(
    ("options", "gpus", "device"),
    [
        ((), None, "cpu"),
        (("--device", "cpu"), 2, "cpu"),
        ((), 2, "cuda:0"),
        (("--gpus", "1"), 2, "cuda:1"),
    ],
)
def test_dataparallel_runs_on_what_there_is(options, gpus, device, build_of, run, data, weights):
    result = run(
        build_of() / "dataparallel.py", "--data", data, *VALIDATE, weights, *options, gpus=gpus
    )
    assert result.status == 0, result.err
    assert f"device={device} " in result.outs[0]
    assert " * Acc@1 " in result.outs[0]
    assert [
        line.partition("; ")[0] for line in result.outs[0].splitlines() if "resumed" in line
    ] == [f"resumed from {weights}: 1 epochs and 0 steps done, best Acc@1 10.000"]
    assert "random weights" not in result.outs[0]
    assert bool(of(result, "DataParallel")) == (device != "cpu")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-j", "-1"], "--workers: expected 0 to 1024, found -1\n"),
        (["--expect-world", "4"], "--expect-world 4: this job has 2 processes\n"),
        (
            ["--arch", "shufflenet_v2_x0_5", "--pretrained"],
            "--pretrained: cannot get https://download.pytorch.org/models/",
        ),
    ],
)
def test_what_cannot_work_is_one_line_of_two_ranks(
    options, words, script, run, data, weights, tmp_path
):
    nowhere = "http://127.0.0.1:9"  # no network
    env = {"TORCH_HOME": tmp_path / "none", "http_proxy": nowhere, "https_proxy": nowhere}
    command = [script, "--data", data, *VALIDATE, weights, *options]
    result = run(*command, ranks=2, gpus=2, **env)
    assert 2 in result.statuses
    # On a busy machine a rank that still waits is told by torch's C++ that the store is gone. Where
    # torch.hub says what it downloads, on which stream, depends on the version.
    said = "".join(result.errs).splitlines(keepends=True)
    lines = [line for line in said if line.startswith("distributed.py: ")]
    assert len(lines) == 1 and lines[0].startswith(f"distributed.py: error: {words}"), said
    assert not any(line.startswith("Traceback") for line in said), said
    assert all(line.startswith("Downloading: ") for line in "".join(result.outs).splitlines())
    assert list(result.folder.iterdir()) == []


@pytest.fixture
def hosts(script, weights, tmp_path):
    """A function that starts two agents, which play two hosts, with so many processes and these
    options each.
    """
    agents = []

    def hosts(*commands):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        endpoint = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=hosts"]
        for number, (processes, *options) in enumerate(commands):
            agent = [
                sys.executable,
                *TORCHRUN,
                "--nnodes=2",
                f"--nproc_per_node={processes}",
                *endpoint,
            ]
            command = [*map(str, [*agent, script, *VALIDATE, weights, *options])]
            with open(tmp_path / f"log{number}", "w") as file:
                agents.append(
                    subprocess.Popen(
                        command,
                        cwd=tmp_path,
                        env=environment_of(),
                        stdout=file,
                        stderr=subprocess.STDOUT,
                    )
                )
        return agents, [tmp_path / f"log{number}" for number in range(2)]

    yield hosts
    for agent in agents:
        agent.terminate()
        agent.wait(timeout=PATIENCE)


def errors_in(log):
    return [line for line in log.read_text().splitlines() if "distributed.py: error: " in line]


def test_host_that_alone_has_no_data_says_so_once_and_names_itself(hosts, data, tmp_path):
    agents, (good, bad) = hosts((2, "--data", data), (2, "--data", tmp_path / "nothing"))
    assert agents[1].wait(timeout=PATIENCE) == 1
    (line,) = errors_in(bad)  # the other host may wait for this one
    start = f"distributed.py: error: {socket.gethostname()}: {tmp_path}/nothing/train: there are no class folders; "
    assert line.startswith(start) and errors_in(good) == []


@pytest.mark.thorough
def test_hosts_with_other_numbers_of_processes_end_in_one_line_each(hosts, data):
    """A3: in seconds, and not after --timeout."""
    agents, logs = hosts((2, "--data", data), (1, "--data", data, "--batch-size", "4"))
    assert [agent.wait(timeout=PATIENCE) for agent in agents] == [1, 1]  # torchrun's own status
    for log in logs:
        (line,) = errors_in(log)
        assert ": the ranks of this job differ: processes on the host: " in line
        assert re.search(r"exitcode +: 2\b", log.read_text())


def test_two_processes_of_torchrun_are_too_many_for_dataparallel(build_of, run, data):
    """B7: one line, and nothing is written."""
    result = run(build_of() / "dataparallel.py", "--data", data, ranks=2, gpus=2)
    assert 2 in result.statuses
    line = "dataparallel.py: error: this script is one process on all GPUs, and 2 were started: "
    assert [
        said.startswith(line)
        for said in "".join(result.errs).splitlines()
        if "stand-in" not in said
    ] == [True]
    assert list(result.folder.iterdir()) == []


def test_device_that_is_not_there_is_one_line(build_of, run, data, weights):
    result = run(
        build_of() / "dataparallel.py",
        "--data",
        data,
        *VALIDATE,
        weights,
        "--device",
        "cuda",
        gpus=0,
    )
    assert result.status == 2
    assert (
        "dataparallel.py: error: --device cuda: there is none here, or none is visible\n"
        in result.err
    )
    assert "Traceback" not in result.err


SCRIPTS = pytest.mark.parametrize("name", ["distributed.py", "dataparallel.py"])


@SCRIPTS
def test_help_names_every_model_and_option(name, build_of, run):
    shown = run(build_of() / name, "--help", gpus=None)
    assert (shown.status, shown.err) == (0, "")
    text = " ".join(shown.outs[0].split())
    for word in (
        "resnet18",
        "vit_b_16",
        "--resume PATH",
        "--output-dir DIR",
        "--device DEVICE",
        "--save-every N",
    ):
        assert word in text
    assert list(shown.folder.iterdir()) == []


@SCRIPTS
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--workers", "3000000000"], "--workers: expected 0 to 1024, found 3000000000"),
        (["--lr", "nan"], "--lr: expected 0 to 1000, found nan"),
    ],
)
def test_a_senseless_number_is_one_line_before_anything_starts(
    name, options, words, build_of, run, data, weights
):
    result = run(build_of() / name, "--data", data, *VALIDATE, weights, *options, gpus=2)
    assert result.status == 2
    said = [line for line in result.err.splitlines() if not line.startswith("stand-in: ")]
    assert said == [f"{name}: error: {words}"]
    assert result.outs == [
        "no launcher: running as a single process\n" if name == "distributed.py" else ""
    ]
    assert result.events == [] and list(result.folder.iterdir()) == []


# The scripts and support/ beside them


@pytest.mark.parametrize(
    "name", ["distributed.py", pytest.param("dataparallel.py", marks=pytest.mark.thorough)]
)
def test_a_copied_build_runs_from_any_working_directory(
    name, build_of, command, data, weights, tmp_path
):
    shutil.copytree(build_of(), tmp_path / "another place" / "copy")
    for folder in (
        tmp_path / "run",
        tmp_path / "another place",
    ):  # in the working directory, and above the scripts
        (folder / "support").mkdir()
        (folder / "support" / "__init__.py").write_text("raise SystemExit('the wrong support/')")
    torchrun = [*TORCHRUN, "--nproc_per_node=2"] if name == "distributed.py" else []
    script = os.path.join("..", "another place", "copy", name)
    result = command(*torchrun, script, "--data", data, *VALIDATE, weights, gpus=None)
    assert result.status == 0, result.err
    assert "".join(result.outs).count("\n * Acc@1 ") == 1
    assert result.folder.joinpath("support").exists() and len(list(result.folder.iterdir())) == 1


@SCRIPTS
def test_a_script_without_its_folder_or_beside_another_one_says_so_in_one_line(
    name, build_of, run, data, tmp_path
):
    def said(folder):
        result = run(folder / name, "--data", data, gpus=None)
        assert result.status == 1 and result.outs == [""] and list(result.folder.iterdir()) == []
        start = f"{folder / name}: needs the folder support/ that was built with it: "
        assert (
            result.err.startswith(start)
            and result.err.endswith("\n")
            and result.err.count("\n") == 1
        )
        return result.err[len(start) :].strip()

    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(build_of() / name, alone)
    assert said(alone) == "No module named 'support'"

    for what in ("other", "incomplete"):
        shutil.copytree(build_of(), tmp_path / what)
    module = tmp_path / "other" / "support" / "seeds.py"
    head, rest = module.read_text().split("\n", 1)
    (build,) = re.findall(r", build (\w+): edit", (build_of() / name).read_text().split("\n", 1)[0])
    assert build in head
    module.write_text(head.replace(build, "0123456789ab") + "\n" + rest)
    assert said(tmp_path / "other") == f"{module} is not of the script's build, {build}"

    (
        tmp_path / "incomplete" / "support" / "saved.py"
    ).unlink()  # which the scripts themselves do not import
    assert said(tmp_path / "incomplete").startswith("cannot import name 'saved' from ")
