"""SARIF of `check` and `rewrite`: what the standard asks for, and the places that the text names."""

import json
import re
from urllib.parse import unquote, urlsplit

import pytest
from conftest import relock, replace

from patcher import sarif
from patcher.rewrite.rewrite import PATCHES

LEVELS = {"none", "note", "warning", "error"}
OLD = b"import os\nparser.add_argument('--local_rank', default=-1)\nn = correct[:k].view(-1)\n"


@pytest.fixture
def project(small_project):
    return small_project


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def valid(text: str) -> dict:
    """The one run of a log, after a look at each rule of SARIF 2.1.0 that concerns our logs."""
    log = json.loads(text)
    assert set(log) == {"$schema", "version", "runs"}  # 3.13.1: nothing else at the top
    assert (log["version"], len(log["runs"])) == ("2.1.0", 1)
    assert log["$schema"].endswith("/sarif-schema-2.1.0.json")
    (run,) = log["runs"]
    assert run["columnKind"] in ("utf16CodeUnits", "unicodeCodePoints")
    driver = run["tool"]["driver"]
    assert driver["name"]
    ids = [rule["id"] for rule in driver["rules"]]
    assert len(set(ids)) == len(ids)
    assert all(rule["shortDescription"]["text"] for rule in driver["rules"])
    (invocation,) = run["invocations"]
    assert isinstance(invocation["executionSuccessful"], bool)
    for note in invocation.get("toolExecutionNotifications", ()):
        assert note["level"] in LEVELS and note["message"]["text"]
    for result in run["results"]:
        assert result["ruleId"] == ids[result["ruleIndex"]]
        assert result["level"] in LEVELS and result["message"]["text"]
        (location,) = result["locations"]  # code scanning takes no result without one
        physical = location["physicalLocation"]
        uri = physical["artifactLocation"]["uri"]
        assert re.fullmatch(r"[\w.~!$&'()*+,;=:@/%-]+", uri, re.ASCII)
        assert urlsplit(uri).scheme in ("", "file")
        for name, value in physical.get("region", {"startLine": 1}).items():
            assert name in ("startLine", "startColumn") and value >= 1
    return run


def places(run: dict) -> list[tuple]:
    """(rule, level, file, line, column) of each result."""
    found = []
    for result in run["results"]:
        physical = result["locations"][0]["physicalLocation"]
        region = physical.get("region", {})
        file = unquote(physical["artifactLocation"]["uri"])
        line, column = region.get("startLine", 0), region.get("startColumn", 0)
        found.append((result["ruleId"], result["level"], file, line, column))
    return found


def ending(run: dict) -> tuple[bool, int, list[str]]:
    (invocation,) = run["invocations"]
    told = invocation.get("toolExecutionNotifications", ())
    texts = [note["message"]["text"] for note in told]
    return invocation["executionSuccessful"], invocation["exitCode"], texts


def test_rewrite_names_what_waits_for_somebody(folder, patcher):
    (folder / "sub dir").mkdir()
    (folder / "sub dir/ü%.py").write_bytes(OLD)
    (folder / "unsure.py").write_bytes(b"import torch\ngpus = [0, 1]\n")
    (folder / "broken.py").write_bytes(OLD + b"f(\n")
    (folder / "other.py").write_bytes(b"x = 1\n")
    result = patcher("rewrite", "--format", "sarif", ".")
    run = valid(result.out)
    assert result.code == 1
    assert ending(run) == (True, 1, [])
    assert places(run) == [
        ("unreadable", "error", "broken.py", 4, 2),
        ("local_rank_from_env", "error", "sub dir/ü%.py", 2, 1),
        ("reshape_topk", "error", "sub dir/ü%.py", 3, 5),
        ("configurable_gpus", "error", "unsure.py", 2, 8),
    ]
    annotations = patcher("rewrite", "--format", "github", ".").out
    shown = [text["message"]["text"] for text in run["results"]]
    assert re.findall(r"^::error .*?::(.*)", annotations, re.MULTILINE) == shown


def test_what_is_written_waits_no_more(folder, patcher):
    (folder / "a.py").write_bytes(OLD)
    run = valid(patcher("rewrite", "--write", "--format", "sarif", "a.py").out)
    assert (places(run), ending(run)) == ([], (True, 0, []))
    assert b"reshape" in (folder / "a.py").read_bytes()


def test_bad_usage_is_a_log_too(folder, patcher):
    result = patcher("rewrite", "--format", "sarif", "nothing_here")
    run = valid(result.out)
    assert (result.code, places(run)) == (2, [])
    assert ending(run) == (False, 2, ["nothing_here: there is no such file or folder"])


def test_check_of_a_fresh_build_finds_nothing(project, patcher):
    assert patcher("apply").code == 0
    result = patcher("check", "--format", "sarif")
    run = valid(result.out)
    assert (result.code, places(run), ending(run)) == (0, [], (True, 0, []))


def test_check_names_a_line_that_was_edited_by_hand(project, patcher):
    assert patcher("apply").code == 0
    replace(project / "build/distributed.py", b"default=3200,", b"default=32,")
    lines = (project / "build/distributed.py").read_bytes().split(b"\n")
    run = valid(patcher("check", "--format", "sarif").out)
    at = lines.index(b"                    default=32,") + 1
    assert places(run) == [("changed", "error", "build/distributed.py", at, 0)]
    assert "edited by hand" in run["results"][0]["message"]["text"]


@pytest.mark.parametrize("now, rule", [(b"reshape(-1)", "obsolete"), (b"flatten()", "stale")])
def test_check_tells_stale_from_obsolete(project, patcher, now, rule):
    assert patcher("apply").code == 0
    replace(project / "upstream/distributed.py", b"[:k].view(-1)", b"[:k]." + now)
    relock(project)
    run = valid(patcher("check", "--format", "sarif").out)
    rules = {found[0] for found in places(run) if found[2] == "upstream/distributed.py"}
    assert rules == {rule}


def test_files_of_a_project_elsewhere_are_still_found(project, patcher, monkeypatch):
    assert patcher("apply").code == 0
    (project / "upstream/distributed.py").write_bytes(b"f(\n")
    relock(project)
    above = project.parent
    monkeypatch.chdir(above)
    arguments = ("check", "--format", "sarif", "--root", project.name)
    run = valid(patcher(*arguments, "--out", f"{project.name}/build").out)
    files = {found[2] for found in places(run)}
    assert f"{project.name}/upstream/distributed.py" in files
    assert all((above / file).exists() for file in files)
    elsewhere = above / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    run = valid(patcher("check", "--format", "sarif", "--root", str(project)).out)
    assert any(found[2] == (project / "upstream/distributed.py").as_uri() for found in places(run))


def test_each_patch_for_other_scripts_has_a_rule():
    assert PATCHES.keys() <= sarif.RULES.keys()
