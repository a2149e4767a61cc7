"""What stands around the code: the README's promises, the Dockerfile, the package."""

import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent
README = (REPO / "README.md").read_text()


def test_the_patch_table_of_the_readme_is_what_list_prints(project, patcher):
    table = README.partition("<!-- patches -->\n")[2].partition("<!-- /patches -->")[0]
    assert table == patcher("list", "--format", "markdown").out
    assert table.count("\n") > 3


def test_the_worked_example_of_the_readme_is_a_patch_that_applies(project, patcher):
    source = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]
    (project / "patches" / "print_freq.py").write_text(source)
    (project / "patches" / "__init__.py").write_text('SERIES = {"mine": {"print_freq": {}}}\nDEFAULT = "mine"\n')
    assert patcher("apply").code == 0
    for name in ("distributed.py", "dataparallel.py"):
        before = (project / "upstream" / name).read_text()
        after = (project / "build" / name).read_text().partition("\n")[2]
        assert after == before.replace("default=10,", "default=100,") != before


def test_the_readme_and_the_help_name_only_commands_and_options_that_exist(patcher):
    """Every `python -m patcher ...` of the README parses; that they also work is what the other tests show."""
    lines = re.findall(r"^ *python -m patcher (.*?)(?: +#.*)?$", README, re.MULTILINE)
    lines += re.findall(r"`python -m patcher (?!COMMAND)(.*?)`", README)
    assert len(lines) > 8
    for line in lines:
        assert patcher(*line.split(), "--help").code == 0, line


def test_the_dockerfile_is_linted_and_builds_on_any_base(tmp_path):
    path = REPO / "Dockerfile"
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([hadolint, path], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("", 0)
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM debian\nRUN cd /tmp\n")
    assert "DL3006" in subprocess.run([hadolint, bad], capture_output=True, text=True).stdout  # the linter is at work

    lines = path.read_text().splitlines()
    code = [line for line in lines if not line.startswith("#")]
    assert code[:2] == ["ARG BASE=python:3.11-slim", "FROM ${BASE}"]
    assert not any(line.lower().startswith("# syntax=") or "<<" in line for line in lines)
    assert not any(re.match(r"(COPY|ADD) .*/usr/local", line) for line in code)
    assert any(re.fullmatch(r"USER (?!0$)\d+", line) for line in code)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder with the commands of an environment that holds what `pip install .` brings, and nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=True)
    subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", REPO], check=True)
    return folder / "bin"


def test_an_installed_patcher_builds_the_same_bytes_in_an_empty_folder(installed, tmp_path, project, patcher):
    done = subprocess.run([installed / "patcher", "apply"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert patcher("apply").code == 0
    theirs = {path.name: path.read_bytes() for path in (tmp_path / "build").iterdir()}
    assert theirs == {path.name: path.read_bytes() for path in (project / "build").iterdir()}
    assert set(theirs) == {"distributed.py", "dataparallel.py", "manifest.json"}


def test_installing_brings_libcst_alone_and_adds_one_name(installed, tmp_path):
    code = "import importlib.metadata as m; print(*{d.metadata['Name'].lower() for d in m.distributions()})"
    names = subprocess.run(
        [installed / "python", "-c", code], cwd=tmp_path, capture_output=True, text=True
    ).stdout.split()
    assert set(names) - {"pip", "setuptools"} == {"patcher", "libcst", "pyyaml"}
    code = "import importlib.metadata as m; print(*{f.parts[0] for f in m.files('patcher') if '..' not in f.parts})"
    tops = subprocess.run(
        [installed / "python", "-c", code], cwd=tmp_path, capture_output=True, text=True
    ).stdout.split()
    assert {top for top in tops if not top.endswith(".dist-info")} == {"patcher"}


def test_installing_leaves_the_checkout_as_it_was(installed):
    done = subprocess.run(["git", "status", "--porcelain", "--ignored"], cwd=REPO, capture_output=True, text=True)
    assert "build/lib" not in done.stdout and not (REPO / "build" / "lib").exists()
