"""The workflows that run on GitHub: their structure, and that what they run exists here."""

import re
import shlex

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


def test_those_that_the_readme_names_are_here():
    assert {"checks.yml", "upstream.yml"} <= set(NAMES)
    for name in NAMES:
        assert name in (REPO / "README.md").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_jobs_are_limited_in_time_and_rights(name):
    data = workflow(name)
    assert set(data) <= {"name", "on", "permissions", "concurrency", "jobs"}
    assert data["permissions"] == {"contents": "read"}
    for job in data["jobs"].values():
        assert set(job) == {"runs-on", "timeout-minutes", "steps"}
        assert job["timeout-minutes"] <= 60


@pytest.mark.parametrize("name", NAMES)
def test_each_step_uses_a_pinned_action_or_runs_something(name):
    first, *rest = steps(name)
    assert first["uses"].startswith("actions/checkout@")
    for step in [first, *rest]:
        assert ("uses" in step) != ("run" in step)
        assert set(step) <= {"uses", "with", "run", "env"}
        if "uses" in step:
            assert re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"])


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
    assert [command for name in NAMES for command in commands(name) if "${{" in command] == []


def test_public_project_is_tried_once_a_week():
    data = workflow("upstream.yml")
    (when,) = data["on"]["schedule"]
    minute, hour, day, month, weekday = when["cron"].split()
    assert (
        minute.isdigit() and hour.isdigit() and (day, month) == ("*", "*") and weekday in "0123456"
    )
    assert "workflow_dispatch" in data["on"]
    (command,) = (command for command in commands("upstream.yml") if " vendor " in command)
    python, dash, package, *argv = shlex.split(command)
    assert (python, dash, package) == ("python", "-m", "patcher")
    args = cli._parser(argv).parse_args(argv)
    assert (args.format, args.write) == ("github", False)
    assert args.source == "https://github.com/tczhangzhi/pytorch-distributed"
    assert f"vendor {args.source}" in cli.EXAMPLES
    (step,) = (step for step in steps("upstream.yml") if "env" in step)
    assert args.rev == "$" + next(iter(step["env"]))


def test_pull_requests_run_what_a_clean_checkout_has_to_pass():
    data = workflow("checks.yml")
    assert {"pull_request", "push"} == set(data["on"])
    assert commands("checks.yml") == [".ci/run", "make test-oldest"]
    assert (REPO / ".ci/run").stat().st_mode & 0o111
    assert {"make lint", "make test"} <= set((REPO / ".ci/run").read_text().splitlines())
