"""`vendor`: what is said of another upstream, and when and how it is taken in."""

import hashlib
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from conftest import REPO, replace, tree
from test_sources import HEX, in_git, repository, tarred, zipped
from test_variants import OBSOLETE, VARIANTS, scripts

from patcher import cli
from patcher.build import store, upstream
from patcher.build.project import Project
from patcher.core import engine
from patcher.vendor import compare

DISTRIBUTED, DATAPARALLEL = "distributed.py", "dataparallel.py"
SCRIPTS = {name: (REPO / "upstream" / name).read_bytes() for name in (DATAPARALLEL, DISTRIBUTED)}
LICENSE = (REPO / "upstream/LICENSE").read_bytes()
THREE = ("local_rank_from_env", "reshape_topk", "configurable_gpus")
CLEAN, STALE = "twenty lines on top", "the GPUs are all there are"
DONE = "reshape is there"
APACHE = b"                                 Apache License\n                           Version 2.0, January 2004\n"


@pytest.fixture
def project(small_project):
    return small_project


RENDERED = {}


@pytest.fixture(autouse=True)
def rendered_once(monkeypatch):
    """What the same patches, to the byte, make of the same text is worked out once for all tests here."""
    render = engine.render

    def once(file, source, patches, support):
        modules = [sys.modules[type(patch).__module__] for patch in patches]
        codes = [
            (repr(patch.options), Path(module.__file__).read_bytes())
            for patch, module in zip(patches, modules)
        ]
        key = (file, source, tuple(codes), tuple(support.items()))
        if key not in RENDERED:
            RENDERED[key] = render(file, source, patches, support)
        return RENDERED[key]

    monkeypatch.setattr(engine, "render", once)


def new(label: str | None = None, **others) -> dict[str, bytes]:
    """The files of another upstream: a variant of ours, with its licence."""
    return {**SCRIPTS, **(scripts(label) if label else {}), "LICENSE": LICENSE, **others}


def folder(path: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


@pytest.fixture
def other(tmp_path):
    """Writes the files of another upstream into a folder."""
    return lambda label=None, **others: folder(tmp_path / "other", new(label, **others))


@pytest.fixture
def vendor(patcher, project):
    return lambda *argv: patcher("vendor", *argv)


def judged(result) -> dict:
    assert result.err == ""
    data = json.loads(result.out)
    assert data["exit"] == result.code
    return data


def lock(project: Path) -> dict:
    return json.loads((project / "upstream/lock.json").read_bytes())


# The verdicts, on every upstream to come of the golden table, for the three patches of a small project


def expected(label: str) -> dict:
    """(patch, file) to verdict; what is not in it is clean."""
    return {
        (patch, file): "obsolete" if row == OBSOLETE else "stale"
        for file, table in VARIANTS[label].verdicts.items()
        for patch, row in table.items()
        if patch in THREE
    }


@pytest.mark.parametrize("label", VARIANTS)
def test_verdicts_are_those_of_the_golden_table(other, vendor, project, label):
    before = tree(project)
    result = vendor(other(label), "--format", "json")
    data = judged(result)
    for series in ("guide", "standard"):
        found = {
            (o["patch"], o["file"]): o["verdict"]
            for o in data["tables"][series]
            if o["verdict"] != "clean"
        }
        assert found == expected(label)
        assert len(data["tables"][series]) == 4
    assert result.code == (1 if expected(label) else 0)
    assert data["pinned"] is False
    for name, content in new(label).items():
        if name != "LICENSE":
            fact = data["files"][name]
            assert (fact["sha256"], fact["size"]) == (
                hashlib.sha256(content).hexdigest(),
                len(content),
            )
            assert fact["lines"] == len(content.split(b"\n"))
    assert tree(project) == before


def test_whole_standard_series_is_judged_too(tmp_path, patcher):
    # The one test on all patches: `--root` is this repository, and nothing is written.
    label = "no barrier in validate"
    result = patcher("vendor", folder(tmp_path, new(label)), "--root", REPO, "--format", "json")
    data = judged(result)
    assert result.code == 1
    stale = {(o["patch"], o["file"]) for o in data["tables"]["standard"] if o["verdict"] == "stale"}
    assert stale == {("exact_validation", DISTRIBUTED)}
    assert {o["verdict"] for o in data["tables"]["guide"]} == {"clean"}
    (candidate,) = data["candidates"]
    assert (candidate["fate"], candidate["new"]) == ("gone", None)
    assert candidate["old"]["text"].strip() == "dist.barrier()"
    assert (
        SCRIPTS[DISTRIBUTED].decode().split("\n")[candidate["old"]["line"] - 1]
        == candidate["old"]["text"]
    )


# Clean: taken in


@pytest.mark.parametrize("label", [CLEAN, "one argument a line", "local_rank is called gpu"])
def test_clean_upstream_is_written_whole_and_check_agrees(other, vendor, patcher, project, label):
    source = other(label)
    assert patcher("apply").code == 0
    result = vendor(source, "--write")
    assert (result.code, result.err) == (0, "")
    for name, content in new(label).items():
        assert (project / "upstream" / name).read_bytes() == content
        if name != "LICENSE":
            assert lock(project)["files"][name] == upstream.entry(content)
    assert upstream.verify(project / "upstream")[1] == []
    changed = any(content != SCRIPTS[name] for name, content in scripts(label).items())
    assert changed and "wrote " in result.out
    assert patcher("check").code == 1  # the build is that of the old one
    assert (patcher("apply").code, patcher("check").code) == (0, 0)
    assert "upstream/: nothing to do" in vendor(source, "--write").out


def test_dry_run_says_what_would_be_written_and_writes_nothing(other, vendor, project):
    before = tree(project)
    result = vendor(other(CLEAN))
    assert result.code == 0
    assert result.out.splitlines()[-1] == (
        "upstream/: every patch of every series is clean; "
        "--write would write dataparallel.py, distributed.py, lock.json"
    )
    assert tree(project) == before


def test_differences_are_counted_in_bytes_and_lines(other, vendor):
    out = vendor(other(CLEAN)).out
    old, now = SCRIPTS[DISTRIBUTED], scripts(CLEAN)[DISTRIBUTED]
    lines = len(old.splitlines())
    assert (
        f"distributed.py: {len(old)} -> {len(now)} bytes, {lines} -> {lines + 20} lines (+20 -0)\n"
        in out
    )
    assert (
        f"  sha256 {hashlib.sha256(old).hexdigest()} -> {hashlib.sha256(now).hexdigest()}\n" in out
    )


def test_modes_are_kept(other, vendor, project):
    os.chmod(project / "upstream/distributed.py", 0o755)
    os.chmod(project / "upstream/dataparallel.py", 0o644)
    os.chmod(project / "upstream/lock.json", 0o600)
    source = other(CLEAN)
    os.chmod(source / DATAPARALLEL, 0o777)
    assert vendor(source, "--write").code == 0
    modes = {
        name: (project / "upstream" / name).stat().st_mode & 0o777
        for name in (*SCRIPTS, "lock.json")
    }
    assert modes == {DISTRIBUTED: 0o755, DATAPARALLEL: 0o644, "lock.json": 0o600}


def test_same_scripts_are_no_news(vendor, project):
    before = tree(project)
    assert vendor("upstream").out.splitlines()[-1] == "upstream/: holds these scripts already"
    assert vendor("upstream", "--write").out.splitlines()[-1] == "upstream/: nothing to do"
    assert tree(project) == before


# Stale and obsolete: refused, unless the maintainer decides otherwise


@pytest.mark.parametrize("label", [STALE, DONE])
@pytest.mark.parametrize("options", [[], ["--accept-licence"]])
def test_stale_or_obsolete_upstream_is_refused_and_nothing_changes(
    other, vendor, project, label, options
):
    before = tree(project)
    result = vendor(other(label), "--write", *options)
    assert (result.code, result.err) == (1, "")
    assert result.out.splitlines()[-1] == "upstream/: nothing was written"
    assert tree(project) == before


def test_stale_patch_is_shown_expected_found_function_and_nearest_code(other, vendor):
    out = vendor(other(STALE)).out
    row = next(line for line in out.splitlines() if line.startswith("  configurable_gpus"))
    assert row.split() == [
        "configurable_gpus",
        "dataparallel.py",
        "stale",
        "expected",
        "1",
        "in",
        "main;",
        "found",
        "none",
    ]
    line = (
        scripts(STALE)[DATAPARALLEL]
        .decode()
        .split("\n")
        .index("    gpus = list(range(torch.cuda.device_count()))")
    )
    assert out.count("error: ") == 1
    assert (
        f"error: dataparallel.py:{line + 1}: configurable_gpus: stale in series guide, standard: "
        "expected 1 site (1 in main), found 0 sites; nothing to edit in main\n"
        f"  upstream/dataparallel.py:{line + 1} in main, now dataparallel.py:{line + 1}:\n"
        "  -     gpus = [0, 1, 2, 3]\n"
        "  +     gpus = list(range(torch.cuda.device_count()))\n"
        "  Adapt patches/configurable_gpus.py to this text, or take it out of the series in patches/__init__.py.\n"
    ) in out


def add_after_reshape(project: Path, looks_for: bytes, writes: bytes) -> None:
    """Put a patch `later` into the series, behind one like it: `looks_for` becomes `writes`."""
    text = (project / "patches/reshape_topk.py").read_bytes()
    text = text.replace(b".reshape(", b"." + writes + b"(").replace(
        b".view(", b"." + looks_for + b"("
    )
    text = text.replace(b'"reshape"', b'"%s"' % writes).replace(b'"view"', b'"%s"' % looks_for)
    (project / "patches/later.py").write_bytes(text)
    replace(
        project / "patches/__init__.py", b'"reshape_topk": {},', b'"reshape_topk": {}, "later": {},'
    )


def told_of_later(result) -> str:
    return result.out.partition(" later: stale")[2].partition("Adapt patches/later.py")[0]


def test_patch_that_edits_what_a_stale_one_writes_is_told_so(vendor, project):
    add_after_reshape(project, b"reshape", b"ravel")
    assert vendor("upstream").code == 0
    files = {name: content.replace(b"[:k].view(", b"[k].view(") for name, content in new().items()}
    result = vendor(folder(project / "new", files))
    assert "reshape_topk: stale" in result.out
    assert "It edits what patches before it write: look at those first." in told_of_later(result)


def test_patch_that_another_one_is_in_the_way_of_is_told_so(vendor, project):
    add_after_reshape(project, b"view", b"ravel")
    result = vendor("upstream")
    assert "reshape_topk: stale" not in result.out
    assert (
        "By itself it finds all that it is for: a patch before it is in the way."
        in told_of_later(result)
    )


def test_patch_whose_function_has_another_name_is_told_where_its_code_is(vendor, project):
    files = {
        name: content.replace(b"accuracy(", b"topk_accuracy(") for name, content in new().items()
    }
    out = vendor(folder(project / "new", files)).out
    assert "found 1 site (1 in topk_accuracy); in topk_accuracy: correct[:k].view(-1)\n" in out
    assert "By itself" not in out and "before it" not in out


def test_obsolete_patch_comes_with_the_lines_to_delete(other, vendor, patcher, project):
    result = vendor(other(DONE))
    assert result.code == 1
    lines = (project / "patches/__init__.py").read_text().split("\n")
    number = lines.index('    "reshape_topk": {},') + 1
    assert (
        "error: distributed.py: reshape_topk: obsolete in series guide, standard: upstream has this edit now\n"
        "  Delete patches/reshape_topk.py and, of the series:\n"
        f'  - patches/__init__.py:{number}: "reshape_topk": {{}},\n'
    ) in result.out
    # The advice works.
    (project / "patches/reshape_topk.py").unlink()
    del lines[number - 1]
    (project / "patches/__init__.py").write_text("\n".join(lines))
    assert vendor(other(DONE), "--write").code == 0
    assert (patcher("apply").code, patcher("check").code) == (0, 0)


def test_patch_that_is_obsolete_in_one_of_two_files_is_still_needed(vendor, project):
    files = {**new(), DISTRIBUTED: scripts(DONE)[DISTRIBUTED]}
    result = vendor(folder(project / "new", files))
    hint = "Take distributed.py out of `sites` in patches/reshape_topk.py; it is still needed in dataparallel.py."
    assert hint in result.out
    assert "Delete" not in result.out


def test_patch_that_is_obsolete_in_one_of_two_series_is_still_needed(vendor, project):
    replace(
        project / "patches/__init__.py",
        b'    "configurable_gpus": {"optional": True},',
        b'    "configurable_gpus": {"gpus": "4"},',
    )
    files = {
        **new(),
        DATAPARALLEL: SCRIPTS[DATAPARALLEL].replace(b"gpus = [0, 1, 2, 3]", b"gpus = [4]"),
    }
    result = vendor(folder(project / "new", files))
    number = (project / "patches/__init__.py").read_text().split("\n").index(
        '    "configurable_gpus": {"gpus": "4"},'
    ) + 1
    assert (
        "configurable_gpus: obsolete in series standard: upstream has this edit now\n"
        "  Take it out of series standard alone: guide still needs it.\n"
    ) in result.out
    assert (
        f'  - patches/__init__.py:{number}: "configurable_gpus": {{"gpus": "4"}},\n' in result.out
    )


@pytest.mark.parametrize("label", [label for label in VARIANTS if expected(label)])
def test_maintainer_may_take_it_in_anyway_and_is_told_what_check_says(
    other, vendor, patcher, project, label
):
    result = vendor(other(label), "--write", "--accept-stale")
    assert (result.code, result.err) == (0, "")
    for name in SCRIPTS:
        assert (project / "upstream" / name).read_bytes() == new(label)[name]
    assert "warning: " in result.out and "error: " not in result.out
    verdicts = set(expected(label).values())
    said = result.out.splitlines()[-1]
    assert "`check` will now exit with 1: of series guide " in said
    assert ("`apply` writes nothing" in said) == ("stale" in verdicts)
    patcher("apply")
    assert (project / "build").exists() == ("stale" not in verdicts)
    check = patcher("check")
    assert check.code == 1
    for (patch, file), verdict in expected(label).items():
        assert f"{verdict} {patch}" in said
        assert f"upstream/{file}" in check.out and f"{patch}: {verdict}" in check.out


def test_accepting_needs_something_to_write(other, vendor):
    for option in ("--accept-stale", "--accept-licence"):
        result = vendor(other(), option)
        assert (result.code, result.out) == (2, "")
        assert "they need --write" in result.err


# The pinned original


@pytest.fixture
def pinned(project):
    """Makes a variant of ours stand for the pinned original, whose bytes are not in this repository."""

    def pin(label, commit="cd12856"):
        data = lock(project)
        files = {
            name: {"sha256": hashlib.sha256(new(label)[name]).hexdigest(), "lines": 1}
            for name in SCRIPTS
        }
        data["original"] |= {"files": files, "commit": commit}
        (project / "upstream/lock.json").write_text(json.dumps(data))

    return pin


def test_pinned_original_is_recognised_and_said_first(other, vendor, pinned, project):
    pinned(CLEAN)
    result = vendor(other(CLEAN))
    assert result.out.splitlines()[0] == "the pinned original (commit cd12856)"
    assert judged(vendor(other(CLEAN), "--format", "json"))["pinned"] is True
    original = lock(project)["original"]
    assert vendor(other(CLEAN), "--write").code == 0
    assert lock(project)["original"] == original  # a copy of it says nothing new about it
    assert {name: lock(project)["files"][name]["sha256"] for name in SCRIPTS} == {
        name: original["files"][name]["sha256"] for name in SCRIPTS
    }


def test_what_is_not_the_pinned_original_is_said_first_with_the_files_that_differ(
    other, vendor, pinned
):
    pinned(CLEAN)
    source = other(CLEAN)
    replace(source / DISTRIBUTED, b"default=3200", b"default=32")
    result = vendor(source)
    assert result.code == 0
    assert result.out.splitlines()[0] == (
        "not the pinned original (commit cd12856): other sha256 of distributed.py"
    )


def test_converted_line_endings_of_the_pinned_original_are_named_as_such(vendor, pinned, project):
    pinned(CLEAN)
    files = {name: content.replace(b"\n", b"\r\n") for name, content in new(CLEAN).items()}
    first = vendor(folder(project / "new", files)).out.splitlines()[0]
    assert first.startswith(
        "the pinned original, but for its line endings (commit cd12856): other sha256 of "
    )


def test_archive_that_claims_the_pinned_commit_but_has_other_bytes_is_refused(
    vendor, pinned, project, tmp_path
):
    pinned(CLEAN, commit=HEX[:7])
    archive = zipped(tmp_path / "a.zip", new(), comment=HEX.encode())
    for options in ([], ["--write"], ["--write", "--accept-stale", "--accept-licence"]):
        result = vendor(archive, *options)
        assert result.code == 1
        assert (
            f"it says that it is the pinned commit {HEX[:7]}, but these files are not that commit's"
            in result.out
        )
    assert (project / "upstream/distributed.py").read_bytes() == SCRIPTS[DISTRIBUTED]


# Git and archives


@pytest.fixture
def history(tmp_path) -> Path:
    """Four commits: ours, a clean one, a stale one, an obsolete one."""
    return repository(tmp_path / "history", *(new(label) for label in (None, CLEAN, STALE, DONE)))


@pytest.mark.parametrize(
    "rev, verdicts", [("v1", set()), ("v2", set()), ("v3", {"stale"}), ("v4", {"obsolete"})]
)
@pytest.mark.parametrize("url", [False, True])
def test_each_commit_of_a_history_has_its_verdicts(history, vendor, project, rev, verdicts, url):
    before = tree(project)
    source = history.as_uri() if url else history
    data = judged(vendor(source, "--rev", rev, "--format", "json"))
    assert {o["verdict"] for o in data["tables"]["standard"]} - {"clean"} == verdicts
    assert data["exit"] == (1 if verdicts else 0)
    assert data["source"]["commit"] == in_git(history, "rev-parse", rev + "^{commit}")
    assert data["source"]["date"] == "2021-08-19"
    assert tree(project) == before


def test_commit_and_licence_go_into_the_lock_and_from_there_into_the_build(
    history, vendor, patcher, project
):
    result = vendor(history, "--rev", "v2", "--write")
    assert result.code == 0
    commit = in_git(history, "rev-parse", "v2^{commit}")
    content = new(CLEAN)
    assert lock(project)["original"] == {
        "repository": "https://github.com/tczhangzhi/pytorch-distributed",
        "commit": commit,
        "date": "2021-08-19",
        "licence": "MIT",
        "files": {
            name: {
                "sha256": hashlib.sha256(content[name]).hexdigest(),
                "lines": content[name].count(b"\n") + 1,
            }
            for name in SCRIPTS
        },
        "beside": [],
    }
    assert str(history) not in (project / "upstream/lock.json").read_text()
    assert patcher("apply").code == 0
    assert (
        json.loads((project / "build/manifest.json").read_bytes())["upstream"]["commit"] == commit
    )
    # And now that commit is the pinned original.
    assert vendor(history, "--rev", "v2").out.startswith(f"the pinned original (commit {commit})\n")
    first = vendor(history, "--rev", "v3").out.splitlines()[0]
    assert (
        first
        == f"not the pinned original (commit {commit}): other sha256 of dataparallel.py, distributed.py"
    )


def test_newer_commit_with_the_same_scripts_is_said_to_be_that(history, vendor, project):
    assert vendor(history, "--rev", "v2", "--write").code == 0
    in_git(history, "checkout", "--quiet", "v2")
    folder(history, {"README.md": b"news"})
    in_git(history, "add", ".")
    in_git(history, "commit", "--quiet", "--message=news")
    out = vendor(history).out.splitlines()
    assert out[0].endswith("; the scripts are the same in the commit at hand")
    assert out[-1] == "upstream/: holds these scripts already; --write would write lock.json"


@pytest.mark.parametrize("make", [zipped, tarred])
def test_archive_of_a_host_is_taken_in_with_its_commit(vendor, project, tmp_path, make):
    archive = make(
        tmp_path / "main.archive", new(CLEAN), top="pytorch-distributed-main/", comment=HEX.encode()
    )
    result = vendor(archive, "--write")
    assert result.code == 0
    assert f"commit {HEX}" in result.out
    assert lock(project)["original"]["commit"] == HEX
    assert (project / "upstream/distributed.py").read_bytes() == new(CLEAN)[DISTRIBUTED]


def test_folder_that_is_not_known_has_no_commit(other, vendor, patcher, project):
    assert vendor(other(CLEAN), "--write").code == 0
    assert lock(project)["original"]["commit"] == "unknown"
    assert "date" not in lock(project)["original"]
    assert (patcher("apply").code, patcher("check").code) == (0, 0)


@pytest.mark.parametrize("write", [[], ["--write"]])
def test_archive_that_leads_outside_is_refused_and_nothing_is_written(
    vendor, project, tmp_path, write
):
    before = tree(tmp_path)
    archive = zipped(tmp_path / "a.zip", {**new(CLEAN), "../upstream/distributed.py": b"evil"})
    result = vendor(archive, *write)
    assert (result.code, result.out) == (2, "")
    assert "which would lie outside" in result.err
    archive.unlink()
    assert tree(tmp_path) == before


def test_crlf_repository_is_taken_in_byte_for_byte(vendor, patcher, project, tmp_path):
    files = {name: content.replace(b"\n", b"\r\n") for name, content in new(CLEAN).items()}
    result = vendor(repository(tmp_path / "crlf", files), "--write")
    assert result.code == 0
    assert "  line endings: LF -> CRLF\n" in result.out
    assert (
        f"{len(SCRIPTS[DISTRIBUTED].splitlines()) + 20} lines (+20 -0)" in result.out
    )  # and not all of them
    for name in SCRIPTS:
        assert (project / "upstream" / name).read_bytes() == files[name]
    assert (patcher("apply").code, patcher("check").code) == (0, 0)
    built = (project / "build/distributed.py").read_bytes()
    assert built.count(b"\n") == built.count(b"\r\n")


def test_script_with_a_byte_order_mark_and_one_with_a_cookie_are_taken_in_as_they_are(
    vendor, project
):
    files = new()
    files[DISTRIBUTED] = b"\xef\xbb\xbf" + files[DISTRIBUTED]
    files[DATAPARALLEL] = b"# -*- coding: latin-1 -*-\n# \xe4\n" + files[DATAPARALLEL]
    assert vendor(folder(project / "new", files), "--write").code == 0
    assert {name: (project / "upstream" / name).read_bytes() for name in SCRIPTS} == {
        name: files[name] for name in SCRIPTS
    }


# What is not as it should be


@pytest.mark.parametrize(
    "broken, says",
    [
        (b'print "x"\n', r"distributed.py:1:1: cannot parse: "),
        (b"import os\n<<<<<<< HEAD\nx = 1\n", r"distributed.py:2:1: cannot parse: "),
        (b"x = 1\n# \x80\n", r"distributed.py:2: cannot parse: not utf-8: byte 0x80"),
    ],
)
@pytest.mark.parametrize("options", [[], ["--write", "--accept-stale"]])
def test_script_that_does_not_parse_is_named_with_its_line_and_nothing_is_written(
    vendor, project, broken, says, options
):
    before = tree(project / "upstream")
    result = vendor(folder(project / "new", {**new(CLEAN), DISTRIBUTED: broken}), *options)
    assert result.code == 2
    assert f"error: {says}" in result.out
    assert result.out.count("cannot parse") == 1  # once, not once a series
    # The other one is judged all the same.
    assert re.search(r"^  reshape_topk +dataparallel.py  clean", result.out, flags=re.MULTILINE)
    assert tree(project / "upstream") == before


def test_missing_script_is_an_error_that_names_what_is_like_it(vendor, project):
    files = {name: content for name, content in new(CLEAN).items() if name != DISTRIBUTED}
    source = folder(project / "new", {**files, "distributed_main.py": SCRIPTS[DISTRIBUTED]})
    for options in ([], ["--write", "--accept-stale", "--accept-licence"]):
        result = vendor(source, *options)
        assert result.code == 1
        assert "distributed.py is not there, but in upstream/lock.json" in result.out
        assert "Was it renamed? There is distributed_main.py" in result.out
    assert (project / "upstream/dataparallel.py").read_bytes() == SCRIPTS[DATAPARALLEL]


def test_source_with_none_of_the_scripts_is_the_wrong_one(vendor, project):
    result = vendor(folder(project / "new", {"README.md": b"x"}))
    assert (result.code, result.out) == (2, "")
    assert "Is this the right source?" in result.err


def test_script_at_the_root_is_the_one_that_is_meant(vendor, project):
    source = folder(project / "new", {**new(CLEAN), "old/distributed.py": b"old"})
    result = vendor(source)
    assert result.code == 0
    assert "also there, and not taken in: old/distributed.py" in result.out
    assert judged(vendor(source, "--format", "json"))["files"][DISTRIBUTED]["path"] == DISTRIBUTED


def test_script_that_could_be_one_of_several_is_an_error_that_lists_them(vendor, project):
    files = {
        f"{place}/{name}": content for place in ("a", "b") for name, content in new(CLEAN).items()
    }
    result = vendor(folder(project / "new", files))
    assert (result.code, result.out) == (2, "")
    assert "distributed.py is there 2 times: a/distributed.py, b/distributed.py" in result.err
    assert "--path" in result.err
    for path in ("a", "./a/", "a\\"):
        assert vendor(project / "new", "--path", path).code == 0
    assert "(at b/distributed.py)" in vendor(project / "new", "--path", "b", "--write").out
    assert vendor(project / "new", "--path", "c").code == 2


def test_licence_that_is_the_same_but_for_its_layout_is_unchanged(other, vendor, project):
    source = other(CLEAN, LICENSE=LICENSE.replace(b"\n", b"\r\n") + b"\n")
    assert "licence: MIT, unchanged" in vendor(source, "--write").out
    assert (project / "upstream/LICENSE").read_bytes() == LICENSE


def test_another_text_of_the_same_licence_is_said_and_taken_in(other, vendor, project):
    text = LICENSE.replace(b"Copyright (c)", b"Copyright (c) 1999 Somebody Else,")
    assert text != LICENSE
    result = vendor(other(CLEAN, LICENSE=text), "--write")
    assert result.code == 0
    assert "licence: MIT as before, but another text: LICENSE" in result.out
    assert (project / "upstream/LICENSE").read_bytes() == text


def test_another_licence_is_an_error_until_it_is_accepted(other, vendor, project):
    before = tree(project / "upstream")
    source = other(CLEAN, LICENSE=APACHE)
    for options in ([], ["--write"], ["--write", "--accept-stale"]):
        result = vendor(source, *options)
        assert result.code == 1
        assert "error: LICENSE: the licence has changed from MIT to Apache-2.0" in result.out
        assert tree(project / "upstream") == before
    result = vendor(source, "--write", "--accept-licence")
    assert result.code == 0
    assert "warning: LICENSE: the licence has changed from MIT to Apache-2.0" in result.out
    assert (project / "upstream/LICENSE").read_bytes() == APACHE
    assert (lock(project)["licence"], lock(project)["original"]["licence"]) == (
        "Apache-2.0",
        "Apache-2.0",
    )


def test_project_without_its_licence_is_an_error_and_a_folder_of_scripts_is_not(
    vendor, project, tmp_path
):
    bare = {name: content for name, content in new(CLEAN).items() if name != "LICENSE"}
    result = vendor(repository(tmp_path / "repository", bare))
    assert result.code == 1
    assert "no licence is there; upstream/LICENSE is MIT and stays as it is" in result.out
    assert vendor(folder(tmp_path / "bare", bare), "--write").code == 0
    assert (project / "upstream/LICENSE").read_bytes() == LICENSE


@pytest.mark.parametrize(
    "text, kind",
    [
        (LICENSE, "MIT"),
        (APACHE, "Apache-2.0"),
        (
            b"GNU GENERAL PUBLIC LICENSE\nVersion 3 ... the GNU Affero General Public License ...",
            "GPL",
        ),
        (b"Redistribution and use in source and binary forms, with or without modification", "BSD"),
        (b"All rights reserved.", "unknown"),
        (b"\xff\xfe", "unknown"),
    ],
)
def test_licence_is_known_by_its_wording(text, kind):
    assert compare.kind_of(text) == kind


def test_scripts_beside_ours_are_said_once_and_news_of_them_later(vendor, project, tmp_path):
    source = repository(
        tmp_path / "r",
        new(None, **{"horovod.py": b"", "more/x.py": b""}),
        new(None, **{"slurm.py": b""}),
    )
    out = vendor(source, "--rev", "v1", "--write").out
    assert "also there, beside them, and not taken in: horovod.py\n" in out
    assert lock(project)["original"]["beside"] == ["horovod.py"]
    assert "taken in" not in vendor(source, "--rev", "v1").out
    assert "new beside them, and not taken in: slurm.py\n" in vendor(source).out
    assert judged(vendor(source, "--format", "json"))["unexpected"] == ["slurm.py"]


@pytest.mark.parametrize(
    "line", [b"from utils import f", b"import utils.deep as u", b"from . import utils"]
)
def test_script_that_needs_a_file_beside_it_is_refused(vendor, project, line):
    files = new(CLEAN, **{"utils.py" if b"deep" not in line else "utils/__init__.py": b""})
    text = files[DISTRIBUTED].replace(b"import random\n", b"import random\n" + line + b"\n")
    number = text.split(b"\n").index(line) + 1
    result = vendor(folder(project / "new", {**files, DISTRIBUTED: text}), "--write")
    assert result.code == 1
    assert f"error: distributed.py:{number}: imports utils" in result.out
    assert "which lies beside it and is not taken in: utils" in result.out


def test_upstream_that_was_edited_by_hand_is_not_overwritten(other, vendor, project):
    replace(project / "upstream/distributed.py", b"default=3200", b"default=32")
    before = tree(project / "upstream")
    result = vendor(other(CLEAN), "--write", "--accept-stale")
    assert result.code == 1
    assert "upstream/distributed.py:" in result.out and "edited by hand" in result.out
    assert tree(project / "upstream") == before


@pytest.mark.parametrize("kind", ["symbolic", "hard"])
def test_link_in_upstream_is_not_replaced(other, vendor, project, kind):
    target = project / "elsewhere.py"
    shutil.copy(project / "upstream/distributed.py", target)
    (project / "upstream/distributed.py").unlink()
    (os.symlink if kind == "symbolic" else os.link)(target, project / "upstream/distributed.py")
    result = vendor(other(CLEAN), "--write")
    assert result.code == 1
    assert "error: upstream/distributed.py: a link, which would be replaced by a file" in result.out
    assert target.read_bytes() == SCRIPTS[DISTRIBUTED]
    assert (project / "upstream/dataparallel.py").read_bytes() == SCRIPTS[DATAPARALLEL]


def test_upstream_that_changes_meanwhile_is_not_overwritten(other, vendor, project, monkeypatch):
    write = store.write

    def late(*args, **options):
        (project / "upstream/lock.json").write_text("{}")
        return write(*args, **options)

    monkeypatch.setattr(store, "write", late)
    result = vendor(other(CLEAN), "--write")
    assert result.code == 1
    assert "upstream/lock.json: changed while this ran" in result.out
    assert (project / "upstream/distributed.py").read_bytes() == SCRIPTS[DISTRIBUTED]


def test_patch_for_a_file_that_the_lock_does_not_name_is_an_error(other, vendor, project):
    replace(project / "patches/reshape_topk.py", b'"distributed.py": {', b'"renamed.py": {')
    result = vendor(other(CLEAN))
    assert result.code == 1
    assert (
        "error: patches/reshape_topk.py: names a file that is not in upstream/lock.json: renamed.py"
        in result.out
    )


def test_crash_of_a_patch_is_its_own(other, vendor, project):
    replace(
        project / "patches/reshape_topk.py",
        b"        if not _flattens",
        b"        1 / 0\n        if not _flattens",
    )
    result = vendor(other(CLEAN), "--write")
    assert result.code == 1
    assert "error: patches/reshape_topk.py:" in result.out
    assert "crashed on distributed.py: ZeroDivisionError" in result.out
    assert (project / "upstream/distributed.py").read_bytes() == SCRIPTS[DISTRIBUTED]


def test_text_of_an_upstream_cannot_move_the_cursor_or_write_workflow_commands(vendor, project):
    text = scripts(STALE)[DATAPARALLEL].replace(
        b"device_count()))", b"device_count()))  # \x1b[2J\xc2\x9b"
    )
    files = {**new(), DATAPARALLEL: text, "x\x1b[2J\n::error::y.py": b""}
    source = folder(project / "new", files)
    for form in ("text", "github"):
        result = vendor(source, "--format", form)
        assert result.code == 1
        assert "\x1b" not in result.out and "\x9b" not in result.out
        assert "\n::error::y" not in result.out
        assert "\\x1b[2J" in result.out


# All or nothing

KILL = """
import os, sys
from patcher import cli
name, number = sys.argv[1], int(sys.argv[2])
real, calls = getattr(os, name), []
def call(*args, **options):
    calls.append(args)
    if len(calls) == number:
        os.kill(os.getpid(), 9)
    return real(*args, **options)
setattr(os, name, call)
sys.exit(cli.main(["vendor", sys.argv[3], "--write"]))
"""


def state(project: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes() for path in (project / "upstream").iterdir() if path.is_file()
    }


@pytest.mark.parametrize(
    "name, number", [*(("replace", n) for n in (1, 2, 3)), ("rename", 1), ("rename", 2)]
)
def test_kill_in_the_middle_is_noticed_by_all_and_repaired_by_the_next_run(
    other, fresh, process, patcher, name, number
):
    old = state(fresh)
    source = other(CLEAN)
    assert process(name, number, source, args=("-c", KILL), cwd=fresh).code == -9
    whole = not (fresh / "upstream/.patcher-undo").exists()
    if not whole and name == "replace" and number > 1:
        assert state(fresh) != old
        for command in (["check"], ["apply"], ["list"], ["export", "out"], ["vendor", source]):
            result = patcher(*command)
            assert result.code == 1, (command, result)
            assert "upstream: taking in another upstream was interrupted" in result.out
    # A run that then fails has put back what was there.
    stale = folder(fresh / "stale", new(STALE))
    result = patcher("vendor", stale, "--write")
    assert result.code == 1
    assert state(fresh) == old
    assert patcher("check").code == 0
    assert patcher("vendor", source, "--write").code == 0
    assert state(fresh)[DISTRIBUTED] == new(CLEAN)[DISTRIBUTED]
    assert sorted(path.name for path in (fresh / "upstream").iterdir()) == sorted(old)


def test_repair_that_fails_is_an_error_and_no_crash(other, fresh, process, patcher, monkeypatch):
    assert process("replace", 2, other(CLEAN), args=("-c", KILL), cwd=fresh).code == -9

    def failing(*args):
        raise OSError(30, "Read-only file system", str(args[0]))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing)
        result = patcher("vendor", "../other", "--write")
    assert (result.code, result.out) == (2, "")
    assert "cannot write: Read-only file system" in result.err
    assert "taking in another upstream was interrupted" in patcher("check").out
    assert patcher("vendor", "../other", "--write").code == 0


@pytest.mark.parametrize("name", ["replace", "rename", "link", "fsync"])
def test_any_failing_call_leaves_upstream_as_it_was(other, vendor, project, monkeypatch, name):
    source, before = other(CLEAN), tree(project)
    for number in range(1, 4):
        real, calls = getattr(os, name), []

        def failing(*args, real=real, calls=calls, number=number, **options):
            calls.append(args)
            if len(calls) == number and name != "link":
                raise OSError(28, "No space left on device", str(args[0]))
            return real(*args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, name, failing)
            result = vendor(source, "--write")
        if result.code == 0:
            break
        assert result.code == 2
        assert "cannot write: No space left on device" in result.err
        assert tree(project) == before
        assert calls


# The command line


def test_installed_upstream_is_not_written(other, vendor, project, monkeypatch):
    real = Project.__init__

    def installed(self, root):
        real(self, root)
        self.is_installed = True

    monkeypatch.setattr(Project, "__init__", installed)
    result = vendor(other(CLEAN), "--write")
    assert (result.code, result.out) == (2, "")
    assert "came with the installed patcher and is not written" in result.err
    assert vendor(other(CLEAN)).code == 0


@pytest.mark.parametrize(
    "arguments, says",
    [
        ([], "the following arguments are required: SOURCE"),
        (["nosuch"], "nosuch: there is no such folder, repository or archive"),
        (["upstream", "--rev", "main"], "--rev main: upstream is not a git repository"),
        (["upstream", "--timeout", "0"], "invalid number of seconds value: '0'"),
        (["upstream", "--timeout", "soon"], "invalid number of seconds value: 'soon'"),
        (["upstream", "--series", "guide"], "unrecognized arguments: --series"),
        (["https://example.org/a.zip"], "download it first"),
    ],
)
def test_bad_usage_ends_in_2_and_says_what_is_wrong(vendor, arguments, says):
    result = vendor(*arguments)
    assert (result.code, result.out) == (2, "")
    assert says in result.err


def test_help_explains_the_options(vendor):
    result = vendor("--help")
    assert (result.code, result.err) == (0, "")
    for option in (
        "--rev",
        "--path",
        "--write",
        "--accept-stale",
        "--accept-licence",
        "--timeout",
        "--root",
    ):
        assert option in result.out
    assert "vendor https://" in cli.EXAMPLES


def test_github_gets_annotations_and_a_folded_table(other, vendor):
    result = vendor(other(STALE), "--format", "github")
    assert (result.code, result.err) == (1, "")
    lines = result.out.splitlines()
    assert lines[0] == "::group::what arrived"
    assert lines.count("::endgroup::") == 3 == sum(line.startswith("::group::") for line in lines)
    (error,) = (line for line in lines if line.startswith("::error "))
    assert error.startswith("::error file=dataparallel.py,line=")
    assert "%0A-     gpus = [0, 1, 2, 3]%0A+     gpus = list(" in error
    assert lines[-1] == "::notice title=patcher::upstream/: it could not be taken in as it is"
    result = vendor(other(CLEAN), "--format", "github")
    assert result.code == 0
    assert "::error" not in result.out


def test_json_of_a_failure_is_json_too(vendor):
    data = judged(vendor("nosuch", "--format", "json"))
    assert data["exit"] == 2
    assert "there is no such folder" in data["problems"][0]["message"]


def test_other_commands_do_not_pay_for_it(fresh, process):
    program = "import sys; from patcher.cli import main; main(sys.argv[1:]); print(*sys.modules)"
    for command in ("apply", "check", "list"):
        modules = process(command, args=("-c", program), cwd=fresh).out.splitlines()[-1].split()
        assert not [
            name for name in modules if name.startswith(("patcher.vendor", "patcher.build.nearest"))
        ]
