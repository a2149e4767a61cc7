"""The image: what goes into it, what it runs, and compose.yaml.  Nothing is built here."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPO
from test_frame import README, options

import patcher as package
from patcher import cli

DOCKERFILE = (REPO / "Dockerfile").read_text()


def joined() -> list[str]:
    """The instructions of the Dockerfile, each in one line, without comments."""
    code = re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE)
    return re.sub(r"\\\n\s*", "", code).splitlines()


def context(folder: Path) -> None:
    """Copy what `COPY . .` copies."""
    lines = (REPO / ".dockerignore").read_text().splitlines()
    everything, *rest = [line for line in lines if not line.startswith("#")]
    assert everything == "*"
    assert [line for line in rest if line[0] != "!"] == ["**/__pycache__", "**/*.pyc"]
    for name in (line[1:] for line in rest if line[0] == "!"):
        source = REPO / name
        if source.is_dir():
            shutil.copytree(
                source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
            )
        else:
            shutil.copy(source, folder / name)


def test_what_goes_into_the_image_is_enough_to_build_and_to_check(tmp_path):
    folder = tmp_path / "patcher"
    folder.mkdir()
    context(folder)
    assert not {"tests", "datasets", ".git", ".venv", "build"} & set(os.listdir(folder))
    (line,) = (line for line in joined() if "python -m patcher apply" in line)
    assert "python -m pip install" in line
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    for command in ("apply", "check"):
        done = subprocess.run(
            [sys.executable, "-m", "patcher", command],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (0, "")
    assert (folder / "build/support").is_dir()
    needed = re.findall(
        r"^license_files = (.*)|file: (.*)", (REPO / "setup.cfg").read_text(), re.MULTILINE
    )
    assert all((folder / (first or second)).exists() for first, second in needed)


def test_the_image_runs_a_command_that_parses_as_nobody_special():
    *_, last = joined()
    program = json.loads(last.removeprefix("CMD "))
    assert program[:3] == ["python", "-m", "patcher"]
    args = cli.parser_for(program[3:]).parse_args(program[3:])
    assert (args.command, args.quick) == ("verify", True)
    assert "USER 1000" in joined()


def test_the_labels_are_those_of_the_package():
    (line,) = (line for line in joined() if line.startswith("LABEL "))
    labels = dict(word.split("=", 1) for word in shlex.split(line)[1:])
    prefix = "org.opencontainers.image."
    assert all(name.startswith(prefix) for name in labels)
    plain = {name.removeprefix(prefix): value for name, value in labels.items()}
    assert plain["version"] == package.__version__
    assert plain["licenses"] == "MIT"
    assert plain["revision"] == "${REVISION}"
    assert {"title", "description"} <= set(plain)
    recipe = (REPO / "Makefile").read_text().partition("\nimage-test:")[2]
    for argument in re.findall(r"--build-arg (\w+)=", recipe):
        assert any(line.startswith(f"ARG {argument}=") for line in joined())


def test_compose_runs_the_guides_two_trainings(project, patcher):
    yaml = pytest.importorskip("yaml")  # comes with LibCST
    data = yaml.safe_load((REPO / "compose.yaml").read_text())
    assert patcher("apply").code == 0
    known = options(project / "build")
    guide = README.partition("## Train, as the guide does")[2].replace("\\\n", "")
    for name, service in data["services"].items():
        assert service["ipc"] == "host"
        assert "runs:/runs" in service["volumes"]
        words = service["command"].split()
        (line,) = re.findall(
            rf"^ *((?:torchrun|python) .*build/{name}\.py .*--epochs .*)", guide, re.MULTILINE
        )
        theirs = line.replace("datasets/imagenet", "/data").split()
        assert words[: len(theirs)] == theirs
        more = words[len(theirs) :]
        assert more[::2] == ["--output-dir", "--resume", "--save-every"]
        assert more[1].startswith("/runs/")
        assert {word for word in words if word.startswith("--")} <= {*known, "--nproc_per_node=8"}
        for argument in service["build"]["args"]:
            assert f"ARG {argument}=" in DOCKERFILE
    assert any("mkdir /runs && chown -R 1000 /opt/patcher /runs" in line for line in joined())
    outputs = [
        service["command"].split("--output-dir ")[1] for service in data["services"].values()
    ]
    assert len({output.split()[0] for output in outputs}) == len(outputs) == 2
