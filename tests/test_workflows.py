"""Workflows on GitHub and hooks of pre-commit: their form, and that what they run exists here."""

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


def test_the_page_on_upstream_names_them():
    assert NAMES == ["checks.yml", "upstream.yml"]
    assert all(name in (REPO / "docs/upstream.md").read_text() for name in NAMES)


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
    assert minute.isdigit() and hour.isdigit()
    assert (day, month) == ("*", "*") and weekday in "0123456"
    assert "workflow_dispatch" in data["on"]
    (command,) = (command for command in commands("upstream.yml") if " vendor " in command)
    argv = shlex.split(command)[3:]
    assert command.startswith("python -m patcher ")
    args = cli.parser_for(argv).parse_args(argv)
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
