"""Workflows and our action on GitHub, hooks of pre-commit: their form, and what they run."""

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

from patcher import cli

yaml = pytest.importorskip("yaml")  # comes with LibCST
NAMES = sorted(path.name for path in (REPO / ".github/workflows").iterdir())


def workflow(name: str) -> dict:
    data = yaml.safe_load((REPO / ".github/workflows" / name).read_text())
    data["on"] = data.pop(True)  # YAML 1.1 takes the key `on` for a boolean
    return data


def steps(name: str) -> list[dict]:
    return [step for job in workflow(name)["jobs"].values() for step in job["steps"]]


def commands(name: str) -> list[str]:
    return [line for step in steps(name) for line in step.get("run", "").splitlines()]


def test_the_page_on_ci_names_them():
    assert NAMES == ["ci.yml", "thorough.yml", "upstream.yml"]
    page = (REPO / "docs/ci.md").read_text()
    assert all(f"`{name}`" in page for name in [*NAMES, *workflow("ci.yml")["jobs"]])


@pytest.mark.parametrize("name", NAMES)
def test_jobs_are_limited_in_time_and_rights(name):
    data = workflow(name)
    assert set(data) <= {"name", "on", "permissions", "concurrency", "jobs"}
    more = {"issues": "write"} if name == "upstream.yml" else {}
    assert data["permissions"] == {"contents": "read", **more}
    for job in data["jobs"].values():
        assert set(job) == {"runs-on", "timeout-minutes", "steps"}
        assert job["timeout-minutes"] <= (180 if name == "thorough.yml" else 60)


@pytest.mark.parametrize("name", NAMES)
def test_each_step_uses_a_pinned_action_or_runs_something(name):
    for job in workflow(name)["jobs"].values():
        assert job["steps"][0]["uses"].startswith("actions/checkout@")
    for step in steps(name):
        assert ("uses" in step) != ("run" in step)
        assert set(step) <= {"id", "if", "uses", "with", "run", "env"}
        if "uses" in step:
            assert re.fullmatch(r"actions/[a-z-]+@v\d+|\./", step["uses"])


@pytest.mark.parametrize("name", NAMES)
def test_python_is_the_one_that_is_tested(name):
    versions = {
        step["with"]["python-version"]
        for step in steps(name)
        if "setup-python" in step.get("uses", "")
    }
    assert versions == {"3.11"}
    assert "3.11" in (REPO / "README.md").read_text()


def test_no_expression_is_put_into_a_shell_command():
    # What a title, a branch or an input says would be run.
    run = [line for step in action()["runs"]["steps"] for line in step["run"].splitlines()]
    run += [command for name in NAMES for command in commands(name)]
    assert [command for command in run if "${{" in command] == []


def test_public_project_is_tried_once_a_week():
    data = workflow("upstream.yml")
    (when,) = data["on"]["schedule"]
    minute, hour, day, month, weekday = when["cron"].split()
    assert minute.isdigit() and hour.isdigit()
    assert (day, month) == ("*", "*") and weekday in "0123456"
    assert "workflow_dispatch" in data["on"]
    (command,) = (command for command in commands("upstream.yml") if " vendor " in command)
    command, _, otherwise = command.strip().partition(" || ")
    assert otherwise == "status=$?"
    argv = shlex.split(command)[3:]
    assert command.startswith("python -m patcher ")
    args = cli.parser_for(argv).parse_args(argv)
    assert (args.format, args.write) == ("github", False)
    assert args.source == "https://github.com/tczhangzhi/pytorch-distributed"
    assert f"vendor {args.source}" in cli.EXAMPLES
    asks, opens = (step for step in steps("upstream.yml") if "env" in step)
    assert args.rev == "$" + next(iter(asks["env"]))
    assert opens["run"] == ".ci/open-issue"
    assert opens["if"] == f"failure() && steps.{asks['id']}.outputs.status == '1'"
    assert set(opens["env"]) == {"REV", "RUN", "GH_TOKEN"}
    assert f'vendor {args.source} --rev "$REV"' in (REPO / ".ci/open-issue").read_text()


def test_pull_requests_run_what_a_clean_checkout_has_to_pass():
    data = workflow("ci.yml")
    assert {"pull_request", "push"} == set(data["on"])
    run = commands("ci.yml")
    assert {".ci/run", "make test-oldest", "make image-test"} <= set(run)
    assert {"make lint", "make test"} <= set((REPO / ".ci/run").read_text().splitlines())
    targets = set(re.findall(r"^([a-z-]+):", (REPO / "Makefile").read_text(), re.MULTILINE))
    made = {word for line in run for word in line.split()[1:] if line.startswith("make ")}
    assert made - targets == {".venv/ready", ".venv-oldest/ready"}
    for line in run:
        for file in re.findall(r"(?<!\S)(?:\.ci|benchmarks)/\S+", line):
            assert (REPO / file).is_file()
            assert "python" in line or os.access(REPO / file, os.X_OK)


@pytest.mark.parametrize("said, status", [("1.2", 0), ("1.2+cpu", 0), ("1.20", 1)])
def test_a_job_prints_its_torch_and_fails_on_another(tmp_path, said, status):
    (tmp_path / ".ci").mkdir()
    shutil.copy(REPO / ".ci/pinned.py", tmp_path / ".ci")
    (tmp_path / "setup.cfg").write_text(
        "[options.extras_require]\nold =\n    torch==1.2\n    torchvision==3.4\n"
    )
    (tmp_path / "torch.py").write_text(f"__version__ = {said!r}\n")
    (tmp_path / "torchvision.py").write_text("__version__ = '3.4'\n")
    done = subprocess.run(
        [sys.executable, ".ci/pinned.py", "old"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (status, "")
    assert done.stdout.splitlines()[0] == f"torch {said}; pinned for old: 1.2"


def test_the_oldest_and_the_newest_torch_are_asserted():
    jobs = workflow("ci.yml")["jobs"]
    for job, extra, python in (("newest", "train", ".venv"), ("oldest", "oldest", ".venv-oldest")):
        assert {"run": f"{python}/bin/python .ci/pinned.py {extra}"} in jobs[job]["steps"]


# An issue with vendor's verdicts

GH = """\
#!/usr/bin/env bash
printf '%s\\n' "$*" >> calls
case "$2" in list) cat open;; esac
while [ $# -gt 0 ]; do [ "$1" = --body-file ] && cp "$2" body; shift; done
exit 0
"""
PYTHON = """\
#!/usr/bin/env bash
[ "$1" = -c ] && exec {} "$@"
echo "$*" >> calls
printf 'error: stale\\n```\\n@somebody %070000d\\n' 0
exit 1
"""


@pytest.mark.parametrize("number, verb", [("", "create --title"), ("7", "edit 7")])
def test_verdicts_become_one_issue(tmp_path, number, verb):
    for name, text in (("gh", GH), ("python", PYTHON.format(shlex.quote(sys.executable)))):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "open").write_text(f"{number}\n")
    more = {"REV": "v1", "RUN": "https://x/1", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run([REPO / ".ci/open-issue"], cwd=tmp_path, env={**os.environ, **more}, check=True)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[0].startswith("-m patcher vendor ") and calls[0].endswith(" --rev v1")
    assert calls[1].startswith("issue list ")
    assert calls[2].startswith(f"issue {verb}") and len(calls) == 3
    first, _, *verdicts = (tmp_path / "body").read_text().splitlines()
    assert "`vendor --rev v1`" in first and first.endswith("https://x/1")
    assert verdicts[:2] == ["    error: stale", "    ```"]
    assert all(line.startswith("    ") for line in verdicts if line)
    assert 60_000 < (tmp_path / "body").stat().st_size < 65_536


# The action that others use


def action() -> dict:
    return yaml.safe_load((REPO / "action.yml").read_text())


def used(folder: Path, **inputs: str) -> tuple[int, str]:
    """Run the action in a folder as a workflow would, with its defaults; the status, the log."""
    data = action()
    given = {name: how["default"] for name, how in data["inputs"].items()}
    given |= {"python": sys.executable, **inputs}
    values = {f"inputs.{name}": value for name, value in given.items()} | {"runner.temp": ""}
    step = data["runs"]["steps"][-1]
    env = {
        key: re.sub(r"\$\{\{ (.*?) \}\}", lambda found: values[found[1]], value)
        for key, value in step["env"].items()
    }
    env |= {"GITHUB_ACTION_PATH": str(REPO), "PYTHONPATH": str(REPO)}  # nothing is installed
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=folder / given["working-directory"],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


@pytest.fixture
def theirs(tmp_path):
    """A repository with a fault, a line that looks like a command, and a module of Python's name."""
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b/train.py").write_text(
        "best = correct[:k].view(-1)\ns = '''\n  ::error::x\n'''\n"
    )
    (tmp_path / "json.py").write_text("raise SystemExit('the module of somebody')\n")
    return tmp_path


def test_the_action_is_composite_and_installs_beside_the_callers_python():
    data = action()
    assert {"name", "description", "inputs", "runs"} <= set(data)
    assert data["runs"]["using"] == "composite"
    install, run = data["runs"]["steps"]
    assert install["shell"] == run["shell"] == "bash"
    assert '--target "$RUNNER_TEMP/patcher" "$GITHUB_ACTION_PATH"' in install["run"]
    assert run["env"]["PYTHONPATH"] == "${{ runner.temp }}/patcher"
    named = re.findall(r"inputs\.([\w-]+)", str([install, run]))
    assert set(named) == set(data["inputs"])
    assert all(f"`{name}`" in (REPO / "docs/ci.md").read_text() for name in data["inputs"])


def test_the_action_annotates_and_shows_the_diff(theirs):
    status, log = used(theirs, sarif="found.sarif")
    lines = log.splitlines()
    assert status == 1
    assert lines[0].startswith("::error file=a b/train.py,line=1,")
    stop = lines.index("::group::the diff") + 1
    word = lines[stop].removeprefix("::stop-commands::")
    assert len(word) == 64
    inside = lines[stop + 1 : lines.index(f"::{word}::")]
    assert {"+best = correct[:k].reshape(-1)", "   ::error::x"} <= set(inside)
    assert lines[-1] == "::endgroup::"
    (result,) = json.loads((theirs / "found.sarif").read_text())["runs"][0]["results"]
    assert result["ruleId"] == "reshape_topk"


def test_the_action_takes_arguments_a_line_each(theirs):
    assert used(theirs, arguments="a b/train.py\n--select=async_keyword\n")[0] == 0
    assert used(theirs, arguments="a b/*.py\n")[0] == 1
    assert used(theirs, **{"working-directory": "a b"}, arguments="train.py")[0] == 1


def test_the_action_checks_a_project(fresh):
    status, log = used(fresh, command="check")
    assert (status, "up to date" in log) == (0, True)
    (fresh / "build/distributed.py").unlink()
    status, log = used(fresh, command="check")
    assert status == 1
    assert log.startswith("::error file=build/distributed.py,title=patcher::missing")


def test_the_action_refuses_another_command(theirs):
    expected = "::error title=patcher::command: expected rewrite or check, found apply\n"
    assert used(theirs, command="apply") == (2, expected)


# Hooks of pre-commit


def test_hooks_for_users_are_commands_that_parse():
    hooks = yaml.safe_load((REPO / ".pre-commit-hooks.yaml").read_text())
    assert [hook["id"] for hook in hooks] == ["patcher-rewrite", "patcher-check"]
    for hook in hooks:
        program, *argv = [*hook["entry"].split(), *hook.get("args", [])]
        argv += ["train.py"] if hook.get("pass_filenames", True) else []
        cli.parser_for(argv).parse_args(argv)
        assert (program, hook["language"]) == ("patcher", "python")


def test_hook_mends_the_files_that_it_is_given_if_told_to(tmp_path, monkeypatch):
    before = "best = correct[:k].view(-1)\n"
    for name in ("given.py", "other.py"):
        (tmp_path / name).write_text(before)
    monkeypatch.chdir(tmp_path)
    hook, _ = yaml.safe_load((REPO / ".pre-commit-hooks.yaml").read_text())
    entry = hook["entry"].split()[1:]
    assert cli.main([*entry, *hook["args"], "given.py"]) == 1
    assert (tmp_path / "given.py").read_text() == before
    assert cli.main([*entry, "--write", "given.py"]) == 0
    assert (tmp_path / "given.py").read_text() == before.replace("view", "reshape")
    assert (tmp_path / "other.py").read_text() == before


def test_our_own_hooks_are_those_of_make_lint_in_the_versions_that_setup_cfg_pins():
    (repo,) = yaml.safe_load((REPO / ".pre-commit-config.yaml").read_text())["repos"]
    entries = [hook["entry"] for hook in repo["hooks"]]
    lint = re.findall(
        r"^\t\$\(BIN\)/(ruff .*|mypy)$", (REPO / "Makefile").read_text(), re.MULTILINE
    )
    entries = [re.sub(" --force-exclude$", " .", entry) for entry in entries]
    assert (repo["repo"], entries) == ("local", [f".venv/bin/{line}" for line in lint])
    pins = (REPO / "setup.cfg").read_text()
    assert all(re.search(rf"^ +{tool}==", pins, re.MULTILINE) for tool in ("ruff", "mypy"))
