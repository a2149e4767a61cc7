"""`python -m patcher verify`: one whole run, and what it says of runs, files and machines at fault."""

import ast
import errno
import json
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

import pytest
from conftest import REPO, environment, relock, replace
from jobs import PATIENCE

from patcher.core.problem import UsageError
from patcher.verify import artefacts, hosts, machine, samples, show, training
from patcher.verify.findings import Check, Standing

PLAN = machine.Setup("cpu", 2, 1, 16)
FOUND = {"torch": "2", "torchvision": "0", "kind": "cpu", "devices": [], "known": True, "close": []}
STEP = (
    "Epoch: [{}][{}/2]\tTime  0.400 ( 0.400)\tData  0.100 ( 0.100)\tLoss 2.3e+00 (2.3e+00)\t"
    "Acc@1  12.50 ( 12.50)\tAcc@5  50.00 ( 50.00)"
)
RESULT = " * Acc@1 9.524 Acc@5 47.619"


# One whole run, with a model of a few hundred weights


@pytest.fixture(scope="module")
def verified(tmp_path_factory):
    """The folder that a whole run has kept, and what it said as json."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("verify") / "kept"
    paths = f"{REPO}:{REPO / 'tests/tiny_models'}"
    command = ["-m", "patcher", "verify", "--quick", "--cpu", "--arch", "tiny", "--format", "json"]
    done = subprocess.run(
        [sys.executable, *command, "--folder", folder, "--root", REPO],
        cwd=folder.parent,
        env=environment(PYTHONPATH=paths),
        capture_output=True,
        text=True,
    )
    assert done.stdout, done.stderr
    return folder, json.loads(done.stdout)


def read(folder):
    """What the checkpoint of the resumed run holds."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(REPO / "tests/tiny_models"))
        path = folder / "runs/distributed/out/checkpoint.pth.tar"
        return artefacts.read(path, folder / "data")


def test_a_whole_run_is_fine_and_says_what_it_has_looked_at(verified):
    _, said = verified
    failed = [finding for finding in said["findings"] if finding["state"] == "failed"]
    assert (said["exit"], failed) == (0, [])
    names = {(finding["group"], finding["name"]) for finding in said["findings"]}
    machine = ("versions", "devices", "memory", "/dev/shm", "open files", "cores", "host name")
    assert {("machine", name) for name in (*machine, "port", "disk")} <= names
    left = ("lines", "files", "checkpoint", "accuracy")
    assert {("distributed", name) for name in (*left, "speed", "resume")} <= names
    assert {("dataparallel", name) for name in (*left, "csv")} <= names
    facts = {finding["name"]: finding["facts"] for finding in said["findings"]}
    assert facts["speed"]["images_per_second"] > 0


def test_a_whole_run_keeps_its_logs_in_the_folder(verified):
    folder, _ = verified
    log = (folder / "runs/distributed/log").read_text()
    assert log.count(" * Acc@1") == 2  # one epoch, and another one after the resume


def test_a_checkpoint_is_judged_by_what_it_holds(verified, tmp_path):
    folder, _ = verified
    path = folder / "runs/distributed/out/checkpoint.pth.tar"
    state = read(folder)
    assert artefacts.checkpoint(state, 2, 2) == ""
    assert artefacts.checkpoint(state, 3, 2) == "epoch: expected 3, found 2"
    assert artefacts.checkpoint(state, 2, 1) == "world_size: expected 1, found 2"
    printed = (round(state["acc1"], 3), round(state["acc5"], 3))
    assert artefacts.accuracy(state, printed, 0.0) == ""
    wrong = artefacts.accuracy(state, (printed[0] + 0.01, printed[1]), 0.0)
    assert wrong.startswith("Acc@1: the script says ")

    half = tmp_path / "half"
    half.write_bytes(path.read_bytes()[:-999])
    broken = artefacts.read(half, folder / "data")
    assert artefacts.checkpoint(broken, 2, 2).startswith("does not load: ")
    assert artefacts.accuracy(broken, printed, 0.0).startswith("cannot be computed: ")


def test_metrics_are_counted_and_their_loss_compared(verified, tmp_path):
    folder, _ = verified
    out = folder / "runs/distributed/out"
    if not (out / "metrics.jsonl").exists():
        pytest.skip("this series writes none")
    state, path = read(folder), tmp_path / "m"
    shutil.copy(out / "metrics.jsonl", path)
    assert artefacts.metrics(path, 2, 2, state, 1e-4) == ""
    off = {**state, "loss": state["loss"] * 1.001}
    assert artefacts.metrics(path, 2, 2, off, 1e-4).startswith("loss of the last validation")
    path.write_text(path.read_text() + path.read_text().splitlines()[0] + "\n")
    wrong = "expected 4 lines of kind train, found 5, 4 different"
    assert artefacts.metrics(path, 2, 2, state, 1e-4) == wrong
    path.write_text(path.read_text()[:-9])
    assert artefacts.metrics(path, 2, 2, state, 1e-4).startswith("cannot be read: ")


# What a training leaves


def printed(*lines):
    run = training.Training("distributed.py")
    for line in lines:
        run.read(line)
    return run


@pytest.mark.parametrize(
    "lines, wrong",
    [
        ((STEP.format(0, 0), STEP.format(0, 1), RESULT), ""),
        ((STEP.format(0, 0), RESULT), "step 1 of epoch 0 is not printed"),
        (
            (STEP.format(0, 0), STEP.format(0, 0), STEP.format(0, 1), RESULT),
            "step 0 of epoch 0 is printed 2 times",
        ),
        ((STEP.format(0, 1), STEP.format(0, 0), RESULT), "expected 2 lines of training, found 2"),
        (
            (STEP.format(0, 0), STEP.format(0, 1), RESULT, RESULT),
            "expected 1 lines of validation accuracy, found 2",
        ),
        (
            (STEP.format(0, 0), STEP.format(0, 1).replace("2.3e+00", "nan"), RESULT),
            "the loss is nan",
        ),
    ],
)
def test_each_step_is_printed_once_and_in_order(lines, wrong):
    assert artefacts.lines(printed(*lines), [0], 2) == wrong


def test_files_are_all_there_and_nothing_else(tmp_path):
    for name in ("checkpoint.pth.tar", "model_best.pth.tar"):
        (tmp_path / name).touch()
    assert artefacts.files(tmp_path, []) == ""
    assert artefacts.files(tmp_path, ["dataparallel.csv"]) == "not written: dataparallel.csv"
    (tmp_path / ".checkpoint.part").touch()
    assert artefacts.files(tmp_path, []) == "left over in the output folder: .checkpoint.part"


@pytest.mark.parametrize(
    "text, wrong",
    [
        ("2026-01-02 03:04:05,12.5\n", ""),
        ("", "expected 1 rows, one an epoch, found 0"),
        ("d,1\nd,2\n", "expected 1 rows, one an epoch, found 2"),
        ("d,soon\n", "expected a date and seconds, found d,soon"),
    ],
)
def test_the_csv_has_a_row_an_epoch(tmp_path, text, wrong):
    (tmp_path / "csv").write_text(text)
    assert artefacts.table(tmp_path / "csv", 1) == wrong


# Runs


def script(tmp_path, text):
    path = tmp_path / "train.py"
    path.write_text(text)
    return [str(path)]


def test_a_run_that_fails_says_why_in_its_own_words(tmp_path):
    command = script(tmp_path, "print('epoch')\nraise RuntimeError('no more memory')\n")
    env = training.environment(1, 2)
    run = training.start("train.py", command, tmp_path / "run", env, lambda text: None)
    assert (run.status, run.last_words) == (1, "RuntimeError: no more memory")
    assert "Traceback" in (tmp_path / "run/log").read_text()


def test_an_interrupt_ends_the_run_that_goes_on(tmp_path):
    wait = "import os, time\nprint(STEP, flush=True)\ntime.sleep(600)\n"
    command = script(tmp_path, f"STEP = {STEP.format(0, 0)!r}\n{wait}")
    said = []

    def tell(text):
        said.append(text)
        if "step 1" in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        training.start("train.py", command, tmp_path, training.environment(1, 2), tell)
    assert said == ["train.py: starting", "train.py: epoch 1, step 1 of 2"]


def test_a_run_gets_no_variables_of_a_launcher(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    env = training.environment(2, 8)
    assert "RANK" not in env
    assert env["OMP_NUM_THREADS"] == "7"
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert training.environment(2, 8)["OMP_NUM_THREADS"] == "4"


# Machines


def finding_named(name, plan=PLAN, **found):
    rows = machine.findings({**FOUND, **found}, plan, Path("/"))
    return next(finding for finding in rows if finding.name == name)


def test_a_name_of_the_host_that_does_not_resolve_is_a_warning(monkeypatch):
    def fails(*where):
        raise OSError(errno.EIO, "no such name")

    monkeypatch.setattr(socket, "getaddrinfo", fails)
    finding = finding_named("host name")
    assert finding.state is Standing.WARNING
    assert "--local-addr" in finding.hint


def test_shared_memory_that_is_too_small_fails_with_both_numbers(monkeypatch):
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=64 * 2**20))
    finding = finding_named("/dev/shm", machine.Setup("cuda", 8, 16, 768))
    assert finding.state is Standing.FAILED
    assert finding.message.startswith("64 MiB free; batches of 768 need 14112, and up to 3 images")
    assert finding_named("/dev/shm").state is Standing.FINE


def test_too_few_open_files_fail(monkeypatch):
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda which: (40, 40))
    assert finding_named("open files").message == "40 allowed, 44 needed by each rank"
    assert finding_named("open files").state is Standing.FAILED


def test_a_device_that_another_process_fills_is_a_warning():
    devices = [{"name": "H", "free": 3 * 2**30, "total": 80 * 2**30}]
    finding = finding_named("devices", devices=devices)
    assert (finding.state, finding.message) == (
        Standing.WARNING,
        "1 x H, at least 3.0 GiB free on each",
    )


def test_devices_without_cores_for_their_loaders_are_a_warning(monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 8)
    assert finding_named("cores", machine.Setup("cuda", 8, 1, 64)).state is Standing.WARNING
    assert finding_named("cores", machine.Setup("cuda", 4, 1, 64)).state is Standing.FINE


def test_a_python_without_torch_is_said_in_one_line(monkeypatch, tmp_path):
    false = tmp_path / "python"
    false.write_text(
        "#!/bin/sh\necho \"ModuleNotFoundError: No module named 'torch'\" >&2\nexit 1\n"
    )
    false.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(false))
    with pytest.raises(UsageError, match="torch cannot be used here: ModuleNotFoundError") as error:
        machine.probe("resnet18")
    assert "pip install" in error.value.hint


def test_only_processes_of_their_own_import_torch():
    for path in (REPO / "patcher/verify").glob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text()))
        names = {a.name for node in nodes if isinstance(node, ast.Import) for a in node.names}
        assert ("torch" in names) == (path.stem in ("probe", "recompute")), path


# Images


def test_some_images_of_a_data_set_are_linked(tmp_path):
    samples.draw(tmp_path / "all", train=40, val=30)
    found = samples.choose(tmp_path / "some", tmp_path / "all", train=25, val=99)
    assert found == {"train": 25, "val": 30}
    links = list((tmp_path / "some/train").glob("*/*"))
    assert len({link.resolve() for link in links}) == 25
    assert len({link.parent.name for link in links}) == 10


@pytest.mark.parametrize("folders", [[], ["train/a"], ["train/a", "val/a"], ["train/a", "val/b"]])
def test_a_data_set_of_another_layout_is_refused(tmp_path, folders):
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    with pytest.raises(UsageError, match="expected images under DIR/train/CLASS/"):
        samples.choose(tmp_path / "some", tmp_path, train=1, val=1)


# The command line


@pytest.fixture
def no_training(monkeypatch):
    """As if torch had been asked; a training must not start."""
    monkeypatch.setattr(machine, "probe", lambda arch: dict(FOUND))
    monkeypatch.setattr(training, "start", lambda *given: pytest.fail("it trains"))


def test_an_edited_upstream_is_exit_1_before_any_training(project, patcher, no_training):
    replace(project / "upstream/distributed.py", b"default=90", b"default=91", 1)
    result = patcher("verify", "--quick", "--format", "json")
    assert result.code == 1
    failed = [f for f in json.loads(result.out)["findings"] if f["state"] == "failed"]
    assert [f["name"] for f in failed] == ["upstream and patches"]
    assert "upstream/distributed.py" in failed[0]["message"]


def test_a_stale_patch_is_exit_1(project, patcher, no_training):
    replace(project / "upstream/distributed.py", b"[:k].view(-1)", b"[:k].flatten()")
    relock(project)
    result = patcher("verify", "--quick")
    assert result.code == 1
    assert result.out.splitlines()[-1].startswith("verify: something is wrong: ")


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--data", "nowhere"], "--data: nowhere/train: No such file or directory"),
        (["--series", "guide"], "series guide has no --resume to test"),
        (["--batch-size", "7"], "--batch-size 7: does not divide by the 2 ranks here"),
        (["--batch-size", "0"], "--batch-size 0: expected 2 or more"),
        (["--folder", "."], "--folder .: not empty"),
        (["--format", "junit", "--folder", "upstream/README.md"], "--folder upstream/README.md: "),
    ],
)
def test_bad_usage_is_exit_2_in_one_line(project, patcher, no_training, arguments, said):
    result = patcher("verify", "--quick", *arguments)
    assert result.code == 2
    assert said in result.err
    assert "Traceback" not in result.err


# As the ranks of torchrun


AGENT = ["-m", "torch.distributed.run", "--local-addr=127.0.0.1", "--nnodes=2", "--rdzv-id=job"]
AGENT += ["--rdzv-backend=c10d"]
QUICK = ["-m", "patcher", "verify", "--quick", "--cpu", "--arch", "tiny", "--root", REPO]
QUICK += ["--format", "json"]
LAUNCHED = {
    "RANK": "0",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "h",
    "MASTER_PORT": "1",
}
LAUNCHED |= {"TORCHELASTIC_RUN_ID": "job", "TORCHELASTIC_RESTART_COUNT": "0"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_ranks_of_two_hosts_train_as_one_job(tmp_path):
    pytest.importorskip("torch")
    command = [sys.executable, *AGENT, f"--rdzv-endpoint=127.0.0.1:{free_port()}", *QUICK]
    agents = []
    for number in range(2):
        with open(tmp_path / f"out{number}", "w") as out:
            started = subprocess.Popen(
                [*command, "--folder", tmp_path / "shared"],
                env=environment(PYTHONPATH=f"{REPO}:{REPO / 'tests/tiny_models'}"),
                cwd=tmp_path,
                stdout=out,
                stderr=subprocess.DEVNULL,
            )
            agents.append(started)
    assert [agent.wait(PATIENCE) for agent in agents] == [0, 0]
    assert (tmp_path / "out1").read_text() == ""
    findings = json.loads((tmp_path / "out0").read_text())["findings"]
    rows = {(row["group"], row["name"]): (row["state"], row["message"]) for row in findings}
    assert [row for row in rows.items() if row[1][0] == "failed"] == []
    assert rows["machine", "hosts"] == ("fine", f"{socket.gethostname()} with ranks 0 to 1")
    assert rows["distributed", "checkpoint"][1].endswith("from a run of 2 processes")
    for name in ("lines", "resume", "files", "accuracy", "metrics"):
        assert rows["distributed", name][0] == "fine"
    assert rows["dataparallel", "DataParallel"][0] == "skipped"


def test_failure_on_one_host_ends_the_training_and_is_said_by_rank_0(tmp_path, monkeypatch):
    """Rank 0 would wait for ever, and rank 2 fails; here they are threads, each with a script."""
    monkeypatch.setattr(hosts, "PATIENCE", 60.0)
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys, time\n"
        "print('Epoch: [0][0/2]')\n"
        "time.sleep(3600) if '2' not in os.getcwd()[-2:] else sys.exit('train.py: error: no images')\n"
    )
    teams = [hosts.Ranks(rank, 3, 3, tmp_path / "ranks", "job") for rank in range(3)]
    with ThreadPoolExecutor() as pool, hosts.leading(teams[0]):
        others = [pool.submit(hosts.follow, team) for team in teams[1:]]
        run = teams[0].lead(1, "train.py", [str(script)], lambda where: None)
    assert [other.result() for other in others] == [0, 0]
    assert run.status != 0 and run.last_words == "error: rank 2: train.py: error: no images"


def test_ranks_of_a_launcher_need_a_folder(project, patcher, no_training, monkeypatch):
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    result = patcher("verify", "--quick")
    assert result.code == 2
    assert result.err.startswith("error: verify as the ranks of a job needs --folder DIR\n")
    monkeypatch.delenv("MASTER_PORT")
    said = "error: verify runs alone or under torchrun, which sets MASTER_PORT\n"
    assert patcher("verify", "--quick").err == said


def test_rank_that_sees_nothing_of_rank_0_says_where_it_looked(
    project, patcher, monkeypatch, tmp_path
):
    monkeypatch.setattr(hosts, "PATIENCE", 0.2)
    for name, value in (LAUNCHED | {"RANK": "1"}).items():
        monkeypatch.setenv(name, value)
    notes = tmp_path / "shared/ranks"
    notes.mkdir(parents=True)
    (notes / "begun").write_text(json.dumps({"start": "of another job"}))
    result = patcher("verify", "--folder", tmp_path / "shared")
    said = f"error: rank 1 on {socket.gethostname()}: nothing of rank 0 in {tmp_path / 'shared'}\n"
    assert result.code == 2 and result.err.startswith(said)


def test_ranks_that_have_not_come_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(hosts, "PATIENCE", 0.2)
    team = hosts.Ranks(0, 4, 2, tmp_path / "ranks", "job")
    with hosts.leading(team):
        team._replace(rank=2).say_hello()
        team._replace(rank=3, start="another job").say_hello()
        wrong, found = team.hosts()
    assert wrong.startswith(f"no word from rank 1, 3 in {tmp_path} on ")
    assert found == {socket.gethostname(): [0, 2]}


def test_line_of_the_script_says_more_than_what_follows_from_it(tmp_path):
    team = hosts.Ranks(0, 3, 3, tmp_path, "job")
    whys = ("RuntimeError: Connection closed by peer", "x.py: error: no images", "")
    for rank, why in enumerate(whys):
        team.write(f"ended-1-{rank}", {"status": int(rank < 2), "why": why})
    assert team.failure(1) == "rank 1: x.py: error: no images"
    assert team.failure(2) == ""


FINDINGS = [
    Check("machine", "port", Standing.FINE, "free"),
    Check("machine", "cores", Standing.WARNING, "few < many", "Get more."),
    Check("project", "build", Standing.SKIPPED, "not there"),
    Check("distributed", "csv", Standing.FAILED, "no row", "Look."),
]


def test_junit_is_what_a_ci_server_reads():
    suite = ElementTree.fromstring(show.as_junit(FINDINGS, 1.0).partition("\n")[2])[0]
    counts = {name: suite.get(name) for name in ("tests", "failures", "skipped")}
    assert counts == {"tests": "4", "failures": "1", "skipped": "1"}
    assert [case.get("classname") for case in suite][-1] == "verify.distributed"
    assert [child.tag for case in suite for child in case] == [
        *("system-out", "system-out", "skipped", "failure")
    ]


def test_the_last_line_counts_and_a_warning_alone_is_exit_0():
    last = "verify: something is wrong: 1 fine, 1 warning, 1 failed, 1 skipped, in 9 s"
    assert show.summary(FINDINGS, 9.2) == last
    assert (show.code(FINDINGS), show.code(FINDINGS[:3])) == (1, 0)
