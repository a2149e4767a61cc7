"""`vendor`: what is said of another upstream, and when and how it is taken in."""

import hashlib
import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest
from conftest import REPO, replace, tree
from test_sources import HEX, commit, in_git, repository, tarred, write, zipped
from test_variants import DATAPARALLEL, DISTRIBUTED, OBSOLETE, VARIANTS, each_kind, scripts

from patcher import cli
from patcher.build import store, upstream
from patcher.build.project import Project
from patcher.core import engine
from patcher.vendor import compare

SCRIPTS = {name: (REPO / "upstream" / name).read_bytes() for name in (DATAPARALLEL, DISTRIBUTED)}
LICENSE = (REPO / "upstream/LICENSE").read_bytes()
THREE = ("local_rank_from_env", "reshape_topk", "configurable_gpus")
CLEAN, STALE = "twenty lines on top", "the GPUs are all there are"
DONE = "reshape is there"
APACHE = b"              Apache License\n        Version 2.0, January 2004\n"
OUR_OWN = "https://github.com/tczhangzhi/pytorch-distributed"
RENDERED = {}


@pytest.fixture
def project(small_project):
    return small_project


@pytest.fixture(autouse=True)
def rendered_once(monkeypatch):
    """Work out once for all tests what the same patches, to the byte, make of the same text."""
    render = engine.render

    def once(file, source, patches, support):
        modules = [Path(sys.modules[type(patch).__module__].__file__) for patch in patches]
        codes = [(repr(p.options), path.read_bytes()) for p, path in zip(patches, modules)]
        key = (file, source, tuple(codes), tuple(support.items()))
        if key not in RENDERED:
            RENDERED[key] = render(file, source, patches, support)
        return RENDERED[key]

    monkeypatch.setattr(engine, "render", once)


def new(label: str | None = None, **others) -> dict[str, bytes]:
    """The files of another upstream: a variant of ours, with its licence."""
    return {**SCRIPTS, **(scripts(label) if label else {}), "LICENSE": LICENSE, **others}


def crlf(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: content.replace(b"\n", b"\r\n") for name, content in files.items()}


@pytest.fixture
def other(tmp_path):
    """Writes these files, and no others, into a folder."""

    def other(files: dict[str, bytes]) -> Path:
        shutil.rmtree(tmp_path / "other", ignore_errors=True)
        return write(tmp_path / "other", files)

    return other


@pytest.fixture
def vendor(patcher, project, other):
    """Runs the command on a source, or on these files in a folder."""

    def vendor(*argv):
        return patcher("vendor", *(other(arg) if isinstance(arg, dict) else arg for arg in argv))

    return vendor


def judged(result) -> dict:
    assert result.err == ""
    data = json.loads(result.out)
    assert data["exit"] == result.code
    return data


def refused(result, says: str) -> None:
    """Nothing is said but why."""
    assert (result.code, result.out) == (2, "")
    assert says in result.err


def lock(project: Path) -> dict:
    return json.loads((project / "upstream/lock.json").read_bytes())


def held(project: Path) -> dict[str, bytes]:
    """The scripts in upstream/."""
    return {name: (project / "upstream" / name).read_bytes() for name in SCRIPTS}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# The verdicts, on every upstream of the golden table, for the three patches of a small project


def expected(label: str) -> dict:
    """(patch, file) to verdict; what is not in it is clean."""
    return {
        (patch, file): "obsolete" if row == OBSOLETE else "stale"
        for file, table in VARIANTS[label].verdicts.items()
        for patch, row in table.items()
        if patch in THREE
    }


def not_clean(data: dict, series: str) -> dict:
    outcomes = data["tables"][series]
    return {(o["patch"], o["file"]): o["verdict"] for o in outcomes if o["verdict"] != "clean"}


@pytest.mark.parametrize("label", each_kind())
def test_verdicts_are_those_of_the_golden_table(vendor, project, label):
    before = tree(project)
    result = vendor(new(label), "--format", "json")
    data = judged(result)
    for series in ("guide", "standard"):
        assert not_clean(data, series) == expected(label)
        assert len(data["tables"][series]) == 4
    assert result.code == (1 if expected(label) else 0)
    assert data["pinned"] is False
    for name in SCRIPTS:
        fact, content = data["files"][name], new(label)[name]
        assert (fact["sha256"], fact["size"]) == (sha256(content), len(content))
        assert fact["lines"] == len(content.split(b"\n"))
    assert tree(project) == before


def test_whole_standard_series_is_judged_too(vendor):
    # The one test on all patches: `--root` is this repository, and nothing is written.
    result = vendor(new("no barrier in validate"), "--root", REPO, "--format", "json")
    data = judged(result)
    assert result.code == 1
    assert not_clean(data, "standard") == {("exact_validation", DISTRIBUTED): "stale"}
    assert not_clean(data, "guide") == {}
    (candidate,) = data["candidates"]
    assert (candidate["fate"], candidate["new"]) == ("gone", None)
    old = candidate["old"]
    assert old["text"].strip() == "dist.barrier()"
    assert SCRIPTS[DISTRIBUTED].decode().split("\n")[old["line"] - 1] == old["text"]


# Clean: taken in


@pytest.mark.parametrize("label", [CLEAN, "one argument a line", "local_rank is called gpu"])
def test_clean_upstream_is_written_whole_and_check_agrees(vendor, patcher, project, label):
    assert patcher("apply").code == 0
    result = vendor(new(label), "--write")
    assert (result.code, result.err) == (0, "")
    for name, content in new(label).items():
        assert (project / "upstream" / name).read_bytes() == content
        if name != "LICENSE":
            assert lock(project)["files"][name] == upstream.entry(content)
    assert upstream.verify(project / "upstream")[1] == []
    assert held(project) != SCRIPTS and "wrote " in result.out
    assert patcher("check").code == 1  # the build is that of the old one
    assert (patcher("apply").code, patcher("check").code) == (0, 0)
    assert "upstream/: nothing to do" in vendor(new(label), "--write").out


def test_dry_run_counts_differences_says_what_it_would_write_and_writes_nothing(vendor, project):
    before = tree(project)
    result = vendor(new(CLEAN))
    assert result.code == 0
    old, now = SCRIPTS[DISTRIBUTED], scripts(CLEAN)[DISTRIBUTED]
    size, lines = f"{len(old)} -> {len(now)}", len(old.splitlines())
    assert f"distributed.py: {size} bytes, {lines} -> {lines + 20} lines (+20 -0)\n" in result.out
    assert f"  sha256 {sha256(old)} -> {sha256(now)}\n" in result.out
    assert result.out.splitlines()[-1] == (
        "upstream/: every patch of every series is clean; "
        "--write would write dataparallel.py, distributed.py, lock.json"
    )
    assert tree(project) == before


def test_modes_are_kept(vendor, other, project):
    modes = {DISTRIBUTED: 0o755, DATAPARALLEL: 0o644, "lock.json": 0o600}
    for name, mode in modes.items():
        os.chmod(project / "upstream" / name, mode)
    source = other(new(CLEAN))
    os.chmod(source / DATAPARALLEL, 0o777)
    assert vendor(source, "--write").code == 0
    assert {n: (project / "upstream" / n).stat().st_mode & 0o777 for n in modes} == modes


def test_same_scripts_are_no_news(vendor, project):
    before = tree(project)
    assert vendor("upstream").out.splitlines()[-1] == "upstream/: holds these scripts already"
    assert vendor("upstream", "--write").out.splitlines()[-1] == "upstream/: nothing to do"
    assert tree(project) == before


# Stale and obsolete: refused, unless the maintainer decides otherwise


@pytest.mark.parametrize("label", [STALE, DONE])
def test_stale_or_obsolete_upstream_is_refused_and_nothing_changes(vendor, project, label):
    before = tree(project)
    for options in ([], ["--accept-licence"]):
        result = vendor(new(label), "--write", *options)
        assert (result.code, result.err) == (1, "")
        assert result.out.splitlines()[-1] == "upstream/: nothing was written"
    assert tree(project) == before


def test_stale_patch_is_shown_expected_found_function_and_nearest_code(vendor):
    out = vendor(new(STALE)).out
    row = next(line for line in out.splitlines() if line.startswith("  configurable_gpus"))
    words = "configurable_gpus dataparallel.py stale expected 1 in main; found none"
    assert " ".join(row.split()) == words
    text = "    gpus = list(range(torch.cuda.device_count()))"
    line = scripts(STALE)[DATAPARALLEL].decode().split("\n").index(text) + 1
    assert out.count("error: ") == 1
    assert (
        f"error: dataparallel.py:{line}: configurable_gpus: stale in series guide, standard: "
        "expected 1 site (1 in main), found 0 sites; nothing to edit in main\n"
        f"  upstream/dataparallel.py:{line} in main, now dataparallel.py:{line}:\n"
        "  -     gpus = [0, 1, 2, 3]\n"
        f"  + {text}\n"
        "  Adapt patches/configurable_gpus.py to this text, or take it out of the series in "
        "patches/__init__.py.\n"
    ) in out


def add_after_reshape(project: Path, looks_for: bytes, writes: bytes) -> None:
    """Put a patch `later` into the series, after one like it: `looks_for` becomes `writes`."""
    text = (project / "patches/reshape_topk.py").read_bytes()
    for form in (b".%s(", b'"%s"'):
        old, now = (form % name for name in (b"reshape", writes))
        text = text.replace(old, now).replace(form % b"view", form % looks_for)
    (project / "patches/later.py").write_bytes(text)
    entry = b'"reshape_topk": {},'
    replace(project / "patches/__init__.py", entry, entry + b' "later": {},')


def told_of_later(result) -> str:
    return result.out.partition(" later: stale")[2].partition("Adapt patches/later.py")[0]


def test_patch_that_edits_what_a_stale_one_writes_is_told_so(vendor, project):
    add_after_reshape(project, b"reshape", b"ravel")
    assert vendor("upstream").code == 0
    files = {name: content.replace(b"[:k].view(", b"[k].view(") for name, content in new().items()}
    result = vendor(files)
    assert "reshape_topk: stale" in result.out
    assert "It edits what patches before it write: look at those first." in told_of_later(result)


def test_patch_that_another_one_is_in_the_way_of_is_told_so(vendor, project):
    add_after_reshape(project, b"view", b"ravel")
    result = vendor("upstream")
    assert "reshape_topk: stale" not in result.out
    told = "By itself it finds all that it is for: a patch before it is in the way."
    assert told in told_of_later(result)


def test_patch_whose_function_has_another_name_is_told_where_its_code_is(vendor):
    files = {name: text.replace(b"accuracy(", b"topk_accuracy(") for name, text in new().items()}
    out = vendor(files).out
    assert "found 1 site (1 in topk_accuracy); in topk_accuracy: correct[:k].view(-1)\n" in out
    assert "By itself" not in out and "before it" not in out


def line_of(project: Path, entry: str) -> str:
    """Where a line of the series stands, as it is shown."""
    lines = (project / "patches/__init__.py").read_text().split("\n")
    return f"  - patches/__init__.py:{lines.index(f'    {entry}') + 1}: {entry}\n"


def test_obsolete_patch_comes_with_the_lines_to_delete(vendor, patcher, project):
    result = vendor(new(DONE))
    assert result.code == 1
    entry = '"reshape_topk": {},'
    assert (
        "error: distributed.py: reshape_topk: obsolete in series guide, standard: upstream has "
        "this edit now\n  Delete patches/reshape_topk.py and its entry in the series:\n"
        + line_of(project, entry)
    ) in result.out
    # The advice works.
    (project / "patches/reshape_topk.py").unlink()
    replace(project / "patches/__init__.py", f"    {entry}\n".encode(), b"")
    assert vendor(new(DONE), "--write").code == 0
    assert (patcher("apply").code, patcher("check").code) == (0, 0)


def test_patch_that_is_obsolete_in_one_of_two_files_is_still_needed(vendor):
    out = vendor({**new(), DISTRIBUTED: scripts(DONE)[DISTRIBUTED]}).out
    hint = "Take distributed.py out of `sites` in patches/reshape_topk.py; "
    assert hint + "it is still needed in dataparallel.py." in out
    assert "Delete" not in out


def test_patch_that_is_obsolete_in_one_of_two_series_is_still_needed(vendor, project):
    entry = '"configurable_gpus": {"gpus": "4"},'
    ours = b'"configurable_gpus": {"optional": True},'
    replace(project / "patches/__init__.py", ours, entry.encode())
    text = SCRIPTS[DATAPARALLEL].replace(b"gpus = [0, 1, 2, 3]", b"gpus = [4]")
    out = vendor({**new(), DATAPARALLEL: text}).out
    assert (
        "configurable_gpus: obsolete in series standard: upstream has this edit now\n"
        "  Take it out of series standard alone: guide still needs it.\n"
    ) in out
    assert line_of(project, entry) in out


@pytest.mark.parametrize("label", [label for label in VARIANTS if expected(label)])
def test_maintainer_may_take_it_in_anyway_and_is_told_what_check_says(
    vendor, patcher, project, label
):
    result = vendor(new(label), "--write", "--accept-stale")
    assert (result.code, result.err) == (0, "")
    assert held(project) == {name: new(label)[name] for name in SCRIPTS}
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


def test_accepting_needs_something_to_write(vendor):
    for option in ("--accept-stale", "--accept-licence"):
        refused(vendor(new(), option), "they need --write")


# The pinned original


@pytest.fixture
def pinned(project):
    """Makes a variant of ours stand for the pinned original, which is not in this repository."""

    def pin(label, commit="cd12856"):
        data = lock(project)
        files = {name: {"sha256": sha256(new(label)[name]), "lines": 1} for name in SCRIPTS}
        data["original"] |= {"files": files, "commit": commit}
        (project / "upstream/lock.json").write_text(json.dumps(data))

    return pin


def test_pinned_original_is_recognised_and_said_first(vendor, pinned, project):
    pinned(CLEAN)
    first = vendor(new(CLEAN)).out.splitlines()[0]
    assert first == "the pinned original (commit cd12856)"
    assert judged(vendor(new(CLEAN), "--format", "json"))["pinned"] is True
    original = lock(project)["original"]
    assert vendor(new(CLEAN), "--write").code == 0
    assert lock(project)["original"] == original  # a copy of it says nothing new about it
    for name in SCRIPTS:
        assert lock(project)["files"][name]["sha256"] == original["files"][name]["sha256"]


def test_what_is_not_the_pinned_original_is_said_first_with_the_files_that_differ(vendor, pinned):
    pinned(CLEAN)
    files = new(CLEAN)
    files[DISTRIBUTED] = files[DISTRIBUTED].replace(b"default=3200", b"default=32")
    result = vendor(files)
    assert result.code == 0
    first = "not the pinned original (commit cd12856): other sha256 of distributed.py"
    assert result.out.splitlines()[0] == first
    first = vendor(crlf(new(CLEAN))).out.splitlines()[0]
    converted = "the pinned original, but for its line endings (commit cd12856): other sha256 of "
    assert first.startswith(converted)


def test_archive_that_claims_the_pinned_commit_but_has_other_bytes_is_refused(
    vendor, pinned, project, tmp_path
):
    pinned(CLEAN, commit=HEX[:7])
    archive = zipped(tmp_path / "a.zip", new(), comment=HEX.encode())
    for options in ([], ["--write"], ["--write", "--accept-stale", "--accept-licence"]):
        result = vendor(archive, *options)
        assert result.code == 1
        says = "it says that it is the pinned commit 0123456, but these files are not that commit's"
        assert says in result.out
    assert held(project) == SCRIPTS


# Git and archives


@pytest.fixture(scope="module")
def history(tmp_path_factory) -> Path:
    """Four commits: ours, a clean one, a stale one, an obsolete one."""
    commits = (new(label) for label in (None, CLEAN, STALE, DONE))
    return repository(tmp_path_factory.mktemp("history"), *commits)


@pytest.mark.parametrize(
    "rev, verdict", [("v1", ""), ("v2", ""), ("v3", "stale"), ("v4", OBSOLETE)]
)
def test_each_commit_of_a_history_has_its_verdicts(history, vendor, project, rev, verdict):
    before = tree(project)
    data = judged(vendor(history, "--rev", rev, "--format", "json"))
    assert set(not_clean(data, "standard").values()) == ({verdict} if verdict else set())
    assert data["exit"] == (1 if verdict else 0)
    assert data["source"]["commit"] == in_git(history, "rev-parse", rev + "^{commit}")
    assert data["source"]["date"] == "2021-08-19"
    assert tree(project) == before


def test_commit_and_licence_go_into_the_lock_and_from_there_into_the_build(
    history, vendor, patcher, project
):
    assert vendor(history, "--rev", "v2", "--write").code == 0
    commit, files = in_git(history, "rev-parse", "v2^{commit}"), {}
    for name in SCRIPTS:
        text = new(CLEAN)[name]
        files[name] = {"sha256": sha256(text), "lines": text.count(b"\n") + 1}
    known = {"repository": OUR_OWN, "commit": commit, "date": "2021-08-19", "licence": "MIT"}
    assert lock(project)["original"] == {**known, "files": files, "beside": []}
    assert str(history) not in (project / "upstream/lock.json").read_text()
    assert patcher("apply").code == 0
    manifest = json.loads((project / "build/manifest.json").read_bytes())
    assert manifest["upstream"]["commit"] == commit
    # And now that commit is the pinned original.
    assert vendor(history, "--rev", "v2").out.startswith(f"the pinned original (commit {commit})\n")
    differing = f"(commit {commit}): other sha256 of dataparallel.py, distributed.py"
    first = vendor(history, "--rev", "v3").out.splitlines()[0]
    assert first == f"not the pinned original {differing}"


def test_newer_commit_with_the_same_scripts_is_said_to_be_that(vendor, tmp_path):
    source = repository(tmp_path / "repository", new(CLEAN))
    assert vendor(source, "--write").code == 0
    commit(write(source, {"README.md": b"news"}))
    out = vendor(source).out.splitlines()
    assert out[0].endswith("; the scripts are the same in the commit at hand")
    assert out[-1] == "upstream/: holds these scripts already; --write would write lock.json"


@pytest.mark.parametrize("make", [zipped, tarred])
def test_archive_of_a_host_is_taken_in_with_its_commit(vendor, project, tmp_path, make):
    top = "pytorch-distributed-main/"
    archive = make(tmp_path / "main.archive", new(CLEAN), top=top, comment=HEX.encode())
    result = vendor(archive, "--write")
    assert result.code == 0
    assert f"commit {HEX}" in result.out
    assert lock(project)["original"]["commit"] == HEX
    assert held(project)[DISTRIBUTED] == new(CLEAN)[DISTRIBUTED]


def test_folder_that_is_not_known_has_no_commit(vendor, patcher, project):
    assert vendor(new(CLEAN), "--write").code == 0
    assert lock(project)["original"]["commit"] == "unknown"
    assert "date" not in lock(project)["original"]
    assert (patcher("apply").code, patcher("check").code) == (0, 0)


def test_archive_that_leads_outside_is_refused_and_nothing_is_written(vendor, project, tmp_path):
    before = tree(project)
    archive = zipped(tmp_path / "a.zip", {**new(CLEAN), "../upstream/distributed.py": b"evil"})
    for options in ([], ["--write"]):
        refused(vendor(archive, *options), "which would lie outside")
    assert tree(project) == before
    assert {path.name for path in tmp_path.iterdir()} == {"a.zip", "project"}


def test_crlf_repository_is_taken_in_byte_for_byte(vendor, patcher, project, tmp_path):
    files = crlf(new(CLEAN))
    result = vendor(repository(tmp_path / "crlf", files), "--write")
    assert result.code == 0
    assert "  line endings: LF -> CRLF\n" in result.out
    lines = len(SCRIPTS[DISTRIBUTED].splitlines())
    assert f"{lines + 20} lines (+20 -0)" in result.out  # and not all of them
    assert held(project) == {name: files[name] for name in SCRIPTS}
    assert (patcher("apply").code, patcher("check").code) == (0, 0)
    built = (project / "build/distributed.py").read_bytes()
    assert built.count(b"\n") == built.count(b"\r\n")


def test_script_with_a_byte_order_mark_and_one_with_a_cookie_are_taken_in_as_they_are(
    vendor, project
):
    marked = {DISTRIBUTED: b"\xef\xbb\xbf" + SCRIPTS[DISTRIBUTED]}
    marked[DATAPARALLEL] = b"# -*- coding: latin-1 -*-\n# \xe4\n" + SCRIPTS[DATAPARALLEL]
    assert vendor({**new(), **marked}, "--write").code == 0
    assert held(project) == marked


# What is not as it should be


@pytest.mark.parametrize(
    "broken, says",
    [
        (b'print "x"\n', r"distributed.py:1:1: cannot parse: "),
        (b"import os\n<<<<<<< HEAD\nx = 1\n", r"distributed.py:2:1: cannot parse: "),
        (b"x = 1\n# \x80\n", r"distributed.py:2: cannot parse: not utf-8: byte 0x80"),
    ],
)
def test_script_that_does_not_parse_is_named_with_its_line_and_nothing_is_written(
    vendor, project, broken, says
):
    before = tree(project / "upstream")
    for options in ([], ["--write", "--accept-stale"]):
        result = vendor({**new(CLEAN), DISTRIBUTED: broken}, *options)
        assert result.code == 2
        assert f"error: {says}" in result.out
        assert result.out.count("cannot parse") == 1  # once, not once a series
        # The other one is judged all the same.
        assert re.search(r"^  reshape_topk +dataparallel.py  clean", result.out, re.MULTILINE)
    assert tree(project / "upstream") == before


def test_missing_script_is_an_error_that_names_what_is_like_it(vendor, project):
    files = new(CLEAN)
    files["distributed_main.py"] = files.pop(DISTRIBUTED)
    for options in ([], ["--write", "--accept-stale", "--accept-licence"]):
        result = vendor(files, *options)
        assert result.code == 1
        assert "distributed.py is not there, but in upstream/lock.json" in result.out
        assert "Was it renamed? There is distributed_main.py" in result.out
    assert held(project) == SCRIPTS


def test_source_with_none_of_the_scripts_is_the_wrong_one(vendor):
    refused(vendor({"README.md": b"x"}), "Is this the right source?")


def test_script_at_the_root_is_the_one_that_is_meant(vendor):
    files = {**new(CLEAN), "old/distributed.py": b"old"}
    result = vendor(files)
    assert result.code == 0
    assert "also there, and not taken in: old/distributed.py" in result.out
    assert judged(vendor(files, "--format", "json"))["files"][DISTRIBUTED]["path"] == DISTRIBUTED


def test_script_that_could_be_one_of_several_is_an_error_that_lists_them(vendor, other):
    source = other({f"{place}/{name}": text for place in "ab" for name, text in new(CLEAN).items()})
    result = vendor(source)
    refused(result, "distributed.py is there 2 times: a/distributed.py, b/distributed.py")
    assert "--path" in result.err
    for path in ("a", "./a/", "a\\"):
        assert vendor(source, "--path", path).code == 0
    assert "(at b/distributed.py)" in vendor(source, "--path", "b", "--write").out
    assert vendor(source, "--path", "c").code == 2


def test_licence_that_is_the_same_but_for_its_layout_is_unchanged(vendor, project):
    files = new(CLEAN, LICENSE=LICENSE.replace(b"\n", b"\r\n") + b"\n")
    assert "licence: MIT, unchanged" in vendor(files, "--write").out
    assert (project / "upstream/LICENSE").read_bytes() == LICENSE


def test_another_text_of_the_same_licence_is_said_and_taken_in(vendor, project):
    text = LICENSE.replace(b"Copyright (c)", b"Copyright (c) 1999 Somebody Else,")
    assert text != LICENSE
    result = vendor(new(CLEAN, LICENSE=text), "--write")
    assert result.code == 0
    assert "licence: MIT as before, but another text: LICENSE" in result.out
    assert (project / "upstream/LICENSE").read_bytes() == text


def test_another_licence_is_an_error_until_it_is_accepted(vendor, project):
    before, files = tree(project / "upstream"), new(CLEAN, LICENSE=APACHE)
    message = "LICENSE: the licence has changed from MIT to Apache-2.0"
    for options in ([], ["--write"], ["--write", "--accept-stale"]):
        result = vendor(files, *options)
        assert result.code == 1
        assert f"error: {message}" in result.out
        assert tree(project / "upstream") == before
    result = vendor(files, "--write", "--accept-licence")
    assert result.code == 0
    assert f"warning: {message}" in result.out
    assert (project / "upstream/LICENSE").read_bytes() == APACHE
    assert lock(project)["licence"] == lock(project)["original"]["licence"] == "Apache-2.0"


def test_project_without_its_licence_is_an_error_and_a_folder_of_scripts_is_not(
    vendor, project, tmp_path
):
    bare = {**SCRIPTS, **scripts(CLEAN)}
    result = vendor(repository(tmp_path / "repository", bare))
    assert result.code == 1
    assert "no licence is there; upstream/LICENSE is MIT and stays as it is" in result.out
    assert vendor(bare, "--write").code == 0
    assert (project / "upstream/LICENSE").read_bytes() == LICENSE


@pytest.mark.parametrize(
    "text, kind",
    [
        (LICENSE, "MIT"),
        (APACHE, "Apache-2.0"),
        (b"GNU GENERAL PUBLIC LICENSE\nVersion 3 ... GNU Affero General Public License ...", "GPL"),
        (b"Redistribution and use in source and binary forms, with or without modification", "BSD"),
        (b"All rights reserved.", "unknown"),
        (b"\xff\xfe", "unknown"),
    ],
)
def test_licence_is_known_by_its_wording(text, kind):
    assert compare.kind_of(text) == kind


def test_scripts_beside_ours_are_said_once_and_news_of_them_later(vendor, project, tmp_path):
    beside = {"horovod.py": b"", "more/x.py": b""}
    source = repository(tmp_path / "r", {**new(), **beside}, {**new(), "slurm.py": b""})
    out = vendor(source, "--rev", "v1", "--write").out
    assert "also there, beside them, and not taken in: horovod.py\n" in out
    assert lock(project)["original"]["beside"] == ["horovod.py"]
    assert "taken in" not in vendor(source, "--rev", "v1").out
    assert "new beside them, and not taken in: slurm.py\n" in vendor(source).out
    assert judged(vendor(source, "--format", "json"))["unexpected"] == ["slurm.py"]


@pytest.mark.parametrize(
    "line, file",
    [
        ("from utils import f", "utils.py"),
        ("import utils.deep as u", "utils/__init__.py"),
        ("from . import utils", "utils.py"),
    ],
)
def test_script_that_needs_a_file_beside_it_is_refused(vendor, line, file):
    text = new(CLEAN)[DISTRIBUTED].decode().replace("import random", f"import random\n{line}", 1)
    number = text.split("\n").index(line) + 1
    result = vendor({**new(CLEAN), file: b"", DISTRIBUTED: text.encode()}, "--write")
    assert result.code == 1
    assert f"error: distributed.py:{number}: imports utils" in result.out
    assert f"which lies beside it and is not taken in: {file}" in result.out


def test_upstream_that_was_edited_by_hand_is_not_overwritten(vendor, project):
    replace(project / "upstream/distributed.py", b"default=3200", b"default=32")
    before = tree(project / "upstream")
    result = vendor(new(CLEAN), "--write", "--accept-stale")
    assert result.code == 1
    assert "upstream/distributed.py:" in result.out and "edited by hand" in result.out
    assert tree(project / "upstream") == before


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_link_in_upstream_is_not_replaced(vendor, project, link):
    target = (project / "upstream/distributed.py").rename(project / "elsewhere.py")
    link(target, project / "upstream/distributed.py")
    result = vendor(new(CLEAN), "--write")
    assert result.code == 1
    assert "error: upstream/distributed.py: a link, which would be replaced by a file" in result.out
    assert target.read_bytes() == SCRIPTS[DISTRIBUTED]
    assert held(project) == SCRIPTS


def test_upstream_that_changes_meanwhile_is_not_overwritten(vendor, project, monkeypatch):
    real = store.write

    def late(*args, **options):
        (project / "upstream/lock.json").write_text("{}")
        return real(*args, **options)

    monkeypatch.setattr(store, "write", late)
    result = vendor(new(CLEAN), "--write")
    assert result.code == 1
    assert "upstream/lock.json: changed while this ran" in result.out
    assert held(project) == SCRIPTS


def test_patch_for_a_file_that_the_lock_does_not_name_is_an_error(vendor, project):
    replace(project / "patches/reshape_topk.py", b'"distributed.py": {', b'"renamed.py": {')
    result = vendor(new(CLEAN))
    assert result.code == 1
    message = "names a file that is not in upstream/lock.json: renamed.py"
    assert f"error: patches/reshape_topk.py: {message}" in result.out


def test_crash_of_a_patch_is_its_own(vendor, project):
    line = b"        if not _flattens"
    replace(project / "patches/reshape_topk.py", line, b"        1 / 0\n" + line)
    result = vendor(new(CLEAN), "--write")
    assert result.code == 1
    assert "error: patches/reshape_topk.py:" in result.out
    assert "crashed on distributed.py: ZeroDivisionError" in result.out
    assert held(project) == SCRIPTS


def test_text_of_an_upstream_cannot_move_the_cursor_or_write_workflow_commands(vendor):
    end = b"device_count()))"
    text = scripts(STALE)[DATAPARALLEL].replace(end, end + b"  # \x1b[2J\xc2\x9b")
    for form in ("text", "github"):
        files = {**new(), DATAPARALLEL: text, "x\x1b[2J\n::error::y.py": b""}
        result = vendor(files, "--format", form)
        assert result.code == 1
        assert "\x1b" not in result.out and "\x9b" not in result.out
        assert "\n::error::y" not in result.out
        assert "\\x1b[2J" in result.out


# All or nothing


def killed(name: str, number: int, source: Path) -> None:
    """Take in `source`, in a process that is killed at this call of a function of `os`."""
    if pid := os.fork():
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        return
    real, calls = getattr(os, name), []

    def call(*args, **options):
        calls.append(args)
        if len(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **options)

    try:
        setattr(os, name, call)
        cli.main(["vendor", str(source), "--write"])
    finally:
        os._exit(0)  # it was not killed


def state(project: Path) -> dict[str, bytes]:
    files = (path for path in (project / "upstream").iterdir() if path.is_file())
    return {path.name: path.read_bytes() for path in files}


@pytest.mark.parametrize(
    "name, number", [*(("replace", n) for n in (1, 2, 3)), ("rename", 1), ("rename", 2)]
)
def test_kill_in_the_middle_is_noticed_by_all_and_repaired_by_the_next_run(
    vendor, other, fresh, patcher, name, number
):
    old = state(fresh)
    killed(name, number, source := other(new(CLEAN)))
    is_whole = not (fresh / "upstream/.patcher-undo").exists()
    if not is_whole and name == "replace" and number > 1:
        assert state(fresh) != old
        for command in (["check"], ["apply"], ["list"], ["export", "out"], ["vendor", source]):
            result = patcher(*command)
            assert result.code == 1, (command, result)
            assert "upstream: taking in another upstream was interrupted" in result.out
    # A run that then fails has put back what was there.
    assert vendor(new(STALE), "--write").code == 1
    assert state(fresh) == old
    assert patcher("check").code == 0
    assert vendor(new(CLEAN), "--write").code == 0
    assert state(fresh)[DISTRIBUTED] == new(CLEAN)[DISTRIBUTED]
    assert sorted(path.name for path in (fresh / "upstream").iterdir()) == sorted(old)


def test_repair_that_fails_is_an_error_and_no_crash(vendor, other, fresh, patcher, monkeypatch):
    killed("replace", 2, source := other(new(CLEAN)))

    def failing(*args):
        raise OSError(30, "Read-only file system", str(args[0]))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing)
        refused(vendor(source, "--write"), "cannot write: Read-only file system")
    assert "taking in another upstream was interrupted" in patcher("check").out
    assert vendor(source, "--write").code == 0


@pytest.mark.parametrize("name", ["replace", "rename", "link", "fsync"])
def test_any_failing_call_leaves_upstream_as_it_was(vendor, project, monkeypatch, name):
    before = tree(project)
    for number in range(1, 4):
        real, calls = getattr(os, name), []

        def failing(*args, real=real, calls=calls, number=number, **options):
            calls.append(args)
            if len(calls) == number and name != "link":
                raise OSError(28, "No space left on device", str(args[0]))
            return real(*args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, name, failing)
            result = vendor(new(CLEAN), "--write")
        if result.code == 0:
            break
        refused(result, "cannot write: No space left on device")
        assert tree(project) == before
        assert calls


# The command line


def test_installed_upstream_is_not_written(vendor, monkeypatch):
    real = Project.__init__

    def installed(self, root):
        real(self, root)
        self.is_installed = True

    monkeypatch.setattr(Project, "__init__", installed)
    refused(vendor(new(CLEAN), "--write"), "came with the installed patcher and is not written")
    assert vendor(new(CLEAN)).code == 0


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
    refused(vendor(*arguments), says)


def test_help_explains_the_options(vendor):
    result = vendor("--help")
    assert (result.code, result.err) == (0, "")
    for option in ("rev", "path", "write", "accept-stale", "accept-licence", "timeout", "root"):
        assert f"--{option}" in result.out
    assert "vendor https://" in cli.EXAMPLES


def test_github_gets_annotations_and_a_folded_table(vendor):
    result = vendor(new(STALE), "--format", "github")
    assert (result.code, result.err) == (1, "")
    lines = result.out.splitlines()
    assert lines[0] == "::group::what arrived"
    assert lines.count("::endgroup::") == 3 == sum(line.startswith("::group::") for line in lines)
    (error,) = (line for line in lines if line.startswith("::error "))
    assert error.startswith("::error file=dataparallel.py,line=")
    assert "%0A-     gpus = [0, 1, 2, 3]%0A+     gpus = list(" in error
    assert lines[-1] == "::notice title=patcher::upstream/: it could not be taken in as it is"
    result = vendor(new(CLEAN), "--format", "github")
    assert result.code == 0
    assert "::error" not in result.out


def test_json_of_a_failure_is_json_too(vendor):
    data = judged(vendor("nosuch", "--format", "json"))
    assert data["exit"] == 2
    assert "there is no such folder" in data["problems"][0]["message"]


def test_other_commands_do_not_pay_for_it(fresh, process):
    program = "import sys; from patcher.cli import main; commands = sys.argv[1:]\n"
    program += "for command in commands: main([command])\nprint(*sys.modules)"
    done = process("apply", "check", "list", args=("-c", program), cwd=fresh)
    modules = done.out.splitlines()[-1].split()
    assert "patcher.cli" in modules
    assert not [m for m in modules if m.startswith(("patcher.vendor", "patcher.build.nearest"))]
