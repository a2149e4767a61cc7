"""What stands around the code: what the pages promise, the Dockerfile, the package."""

import ast
import re
import shlex
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pages
import pytest
from conftest import REPO, files_in

import patches
from patcher import cli

README = (REPO / "README.md").read_text()
PAGES = [*pages.PAGES, REPO / "upstream/README.md"]
MAKE = re.findall(r"^([a-z-]+):", (REPO / "Makefile").read_text(), re.MULTILINE)
# A command on a page: an indented line, or between backticks.
COMMAND = re.compile(r"(?:^ {4}|`)((?:python -m patcher|make) [^`\n]*)", re.MULTILINE)


def run(*command, cwd=REPO) -> subprocess.CompletedProcess:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)


def options(folder: Path) -> dict[str, object]:
    """Every option that a script in the folder, or a module beside it, adds; its default if plain."""
    calls = [
        node
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument"
    ]
    found = {}
    for call in calls:
        (default,) = [key.value for key in call.keywords if key.arg == "default"] or [None]
        for name in (arg.value for arg in call.args if isinstance(arg, ast.Constant)):
            found[name] = default.value if isinstance(default, ast.Constant) else None
    return found


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.name)
def test_generated_parts_are_current(page):
    assert page.read_text() == pages.renewed(page), "`make readme` renews them"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_only_commands_files_and_pages_that_exist(page):
    """Every command in it parses; that they also work is what the other tests show."""
    text = page.read_text()
    for command in COMMAND.findall(text):
        words = shlex.split(command, comments=True)
        if words[0] == "make":
            assert set(words[1:]) <= set(MAKE), command
        else:
            cli.parser_for(words[3:]).parse_args(words[3:])
    folders = "patcher|patches|tests|docs|benchmarks|examples|upstream|[.]github"
    named = re.findall(rf"(?<![\w/.-])(?:{folders})/[\w/.-]*\w(?![*<\w])", text)
    assert [name for name in named if not (REPO / name).exists()] == []
    links = [link.partition("#") for link in re.findall(r"\]\((?!https?:)(.*?)\)", text)]
    for name, _, heading in links:
        target = page.parent / name if name else page
        assert target.exists(), name
        if heading:  # else it may be a picture
            titles = re.findall(r"^#+ (.*)", target.read_text(), re.MULTILINE)
            assert heading in [title.lower().replace(" ", "-") for title in titles]


def test_the_readme_is_a_first_screen_and_leads_to_every_page():
    assert README.count("\n") <= 150
    assert [line for line in README.split("\n") if len(line) > 120] == []
    assert all(str(page.relative_to(REPO)) in README for page in PAGES if page.name != "README.md")
    counts = re.findall(r"^\| `(\w+)`.*? \| (\d+) \|", README, re.MULTILINE)
    assert dict(counts) == {name: str(len(series)) for name, series in patches.SERIES.items()}


def test_the_readme_shows_what_apply_prints(project, patcher):
    said = [f"    {line}\n" for line in patcher("apply").out.splitlines()]
    assert "".join(said) in README, "`make readme` renews it"


def test_the_training_page_has_every_option_its_default_and_its_range(project, patcher):
    for series in ("standard", "fast", "vit"):
        assert patcher("apply", "--series", series, "--out", series).code == 0
    page = (REPO / "docs/training.md").read_text().partition("## Options")[2].partition("## ")[0]
    lines = [line for line in page.splitlines() if line.startswith("| `")]
    rows = [[cell.strip() for cell in line.split("|")][1:-1] for line in lines]
    named = {name: row[1] for row in rows for name in re.findall(r"(?<![\w-])-[\w-]+", row[0])}
    defaults = options(project / "vit")
    assert set(named) == set(defaults)
    for series, below in (("fast", "standard"), ("vit", "fast")):
        marked = {row[0] for row in rows if row[3].endswith(f"({series})")}
        alone = set(options(project / series)) - set(options(project / below))
        assert {row[0] for row in rows if alone & set(re.findall(r"--[\w-]+", row[0]))} == marked
    for option, default in defaults.items():
        said = named[option].partition(":")[0]
        if isinstance(default, (int, float)):
            assert float(said) == default, option
        elif default is not None:
            assert said == f"`{default}`", option

    pytest.importorskip("torch")
    from patches.support.arguments import RANGES

    for option, (least, most) in RANGES.items():
        (row,) = (row for row in rows if re.search(rf"--{option}[ `]", row[0]))
        assert row[2] == f"{least} to {most}".replace(str(2**63 - 1), "2^63 - 1"), option


def test_the_dockerfile_is_linted_and_builds_on_any_base(tmp_path):
    path = REPO / "Dockerfile"
    hadolint = Path(sys.executable).parent / "hadolint"
    done = run(hadolint, path)
    assert (done.stdout, done.returncode) == ("", 0)
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM debian\nRUN cd /tmp\n")
    assert "DL3006" in run(hadolint, bad).stdout  # the linter is at work

    lines = path.read_text().splitlines()
    code = [line for line in lines if not line.startswith("#")]
    assert code[:2] == ["ARG BASE=python:3.11-slim", "FROM ${BASE}"]
    assert not any(line.lower().startswith("# syntax=") or "<<" in line for line in lines)
    assert not any(re.match(r"(COPY|ADD) .*/usr/local", line) for line in code)
    assert any(re.fullmatch(r"USER (?!0$)\d+", line) for line in code)


def test_installing_brings_libcst_alone_and_builds_the_same_bytes(tmp_path, project, patcher):
    """`pip install .` in a fresh environment: what it adds, what it builds in an empty folder."""
    folder, empty = tmp_path / "installed", tmp_path / "empty"
    empty.mkdir()
    venv.create(folder, with_pip=True)
    python = folder / "bin/python"
    copy = tmp_path / "copy"  # setuptools keeps what it has built, also of files that are gone
    shutil.copytree(REPO, copy, ignore=shutil.ignore_patterns(".*", "dist", "demo"))
    done = run(python, "-m", "pip", "install", "--quiet", copy)
    assert done.returncode == 0, done.stderr
    assert not (copy / "build/lib").exists()

    code = """if 1:
        from importlib import metadata
        print(*{found.metadata["Name"].lower() for found in metadata.distributions()})
        print(*{path.parts[0] for path in metadata.files("patcher") if ".." not in path.parts})
    """
    names, tops = map(str.split, run(python, "-c", code, cwd=empty).stdout.splitlines())
    assert set(names) - {"pip", "setuptools"} == {"patcher", "libcst", "pyyaml"}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"patcher"}

    done = run(folder / "bin/patcher", "apply", cwd=empty)
    assert (done.returncode, done.stderr) == (0, "")
    assert patcher("apply").code == 0
    theirs = files_in(empty / "build")
    assert theirs == files_in(project / "build")
    scripts = {"distributed.py", "dataparallel.py"}
    assert {*scripts, "manifest.json", "support/__init__.py"} <= set(theirs)
