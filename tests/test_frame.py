"""What stands around the code: the README's promises, the Dockerfile, the package."""

import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from conftest import files_in

REPO = Path(__file__).resolve().parent.parent
README = (REPO / "README.md").read_text()
PAGES = [REPO / "README.md", REPO / "upstream/README.md", *sorted((REPO / "docs").glob("*.md"))]


def test_the_patch_table_of_the_readme_is_what_list_prints(project, patcher):
    table = README.partition("<!-- patches -->\n")[2].partition("<!-- /patches -->")[0]
    assert table == patcher("list", "--format", "markdown").out
    assert table.count("\n") > 3


def test_the_worked_example_of_the_readme_is_a_patch_of_the_series():
    source = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]
    assert source == (REPO / "patches/expected_world.py").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_only_commands_options_files_and_pages_that_exist(patcher, page):
    """Every `python -m patcher ...` in it parses; that they also work is what the other tests show."""
    text = page.read_text()
    lines = re.findall(r"^ *python -m patcher (.*?)(?: +#.*)?$", text, re.MULTILINE)
    lines += re.findall(r"`python -m patcher (?!COMMAND)(.*?)`", text)
    for line in lines:
        assert patcher(*line.split(), "--help").code == 0, line
    targets = {target.partition("#")[0] for target in re.findall(r"\]\((?!https?:)(.*?)\)", text)}
    folders = "patcher|patches|tests|docs|benchmarks|examples|upstream|.github"
    named = re.findall(rf"(?<![\w/.-])(?:{folders})/[\w/.-]*\w(?![*<\w])", text)
    missing = [name for name in named if not (REPO / name).exists()]
    assert missing == [] == [target for target in targets if not (page.parent / target).exists()]


def test_the_readme_is_a_first_screen_and_leads_to_every_page():
    assert README.count("\n") <= 200
    assert [
        line for line in README.split("\n") if len(line) > 120 and not line.startswith("|")
    ] == []
    assert all(f"docs/{page.name}" in README for page in PAGES if page.parent.name == "docs")


def test_the_dockerfile_is_linted_and_builds_on_any_base(tmp_path):
    path = REPO / "Dockerfile"
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([hadolint, path], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("", 0)
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM debian\nRUN cd /tmp\n")
    assert (
        "DL3006" in subprocess.run([hadolint, bad], capture_output=True, text=True).stdout
    )  # the linter is at work

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


def test_an_installed_patcher_builds_the_same_bytes_in_an_empty_folder(
    installed, tmp_path, project, patcher
):
    done = subprocess.run(
        [installed / "patcher", "apply"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert patcher("apply").code == 0
    theirs = files_in(tmp_path / "build")
    assert theirs == files_in(project / "build")
    assert {"distributed.py", "dataparallel.py", "manifest.json", "support/__init__.py"} <= set(
        theirs
    )


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
    done = subprocess.run(
        ["git", "status", "--porcelain", "--ignored"], cwd=REPO, capture_output=True, text=True
    )
    assert "build/lib" not in done.stdout and not (REPO / "build" / "lib").exists()
