"""`patcher rewrite` on files: which ones, what is written, and what it says."""

import json
import os
import pty
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPO, environment, tree

from patcher.rewrite import batch, results, write
from patcher.rewrite.files import find
from patcher.rewrite.rewrite import PATCHES

OLD = b"""\
import os
parser.add_argument('--local_rank', default=-1)  # rank
n = correct[:k].view(-1)
"""
NEW = OLD.replace(b".view", b".reshape")
NEW = NEW.replace(b"default=-1", b'default=int(os.environ.get("LOCAL_RANK", -1))')
OTHER = b"x = 1\n"
UNSURE = b"import torch\ngpus = [0, 1]\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working directory."""
    (tmp_path / "tree").mkdir()
    monkeypatch.chdir(tmp_path / "tree")
    return tmp_path / "tree"


def put(folder: Path, **files: bytes) -> None:
    for name, content in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


# Showing and writing


def test_diff_is_the_default_and_writes_nothing(folder, patcher):
    put(folder, a=OLD, b=OTHER)
    before = tree(folder)
    result = patcher("rewrite", ".")
    assert result.code == 1
    assert tree(folder) == before
    assert result == patcher("rewrite", "--diff", ".")
    assert b"--- a/a.py\n+++ b/a.py\n" in result.stdout
    assert b"\n-n = correct[:k].view(-1)\n" in result.stdout
    assert b"\n+n = correct[:k].reshape(-1)\n" in result.stdout
    assert "a.py: would rewrite 2 (local_rank_from_env 1, reshape_topk 1)" in result.out
    assert "2 files: 1 to rewrite, 2 edits, 1 nothing to do; nothing was written" in result.out
    assert result.err == ""


@pytest.mark.parametrize("tool", [["git", "apply"], ["patch", "-p1"]])
def test_diff_can_be_applied_with_what_is_said_below_it(folder, patcher, tool):
    if not shutil.which(tool[0]):
        pytest.skip(f"{tool[0]} is not installed")
    put(folder, a=OLD, sub__b=b"\xef\xbb\xbf" + OLD.replace(b"\n", b"\r\n"), c=OLD[:-1], d=UNSURE)
    shown = patcher("rewrite", ".").stdout
    tree_before = tree(folder)
    patcher("rewrite", "--write", ".")
    written = tree(folder)
    for name, (_, content) in tree_before.items():
        if content is not None:
            Path(name).write_bytes(content)
    subprocess.run(tool, input=shown, check=True, cwd=folder, capture_output=True)
    assert {
        name: entry for name, entry in tree(folder).items() if not name.endswith(".orig")
    } == written


@pytest.mark.parametrize(
    "here, path, where",
    [
        ("tree", "{}", "tree"),
        ("tree", "{}/sub", "tree"),
        ("tree/sub", "{}/sub", "tree/sub"),
        ("tree/sub", "../sub/../sub/", "tree/sub"),
        ("tree/sub", "..", "tree"),
        ("tree/sub", "{}", "tree"),
        ("elsewhere", "{}", "tree"),
        ("elsewhere", "{}/sub/deep.py", "tree"),
        ("elsewhere", "../tree", "tree"),
        (".", "{}", "tree"),
        (".", "tree", "."),
        ("tree", "../elsewhere", "elsewhere"),
        ("elsewhere", "{}/sub/../../tree/link", "tree"),
    ],
)
def test_diff_can_be_applied_in_the_tree_however_the_files_are_named(
    repository, patcher, monkeypatch, here, path, where
):
    """T18: names in a diff are relative to the working directory or the repository."""
    put(repository.parent / "elsewhere", a=OLD)
    os.symlink("sub", "link")
    monkeypatch.chdir(repository.parent / here)
    path = path.format(repository)
    result = patcher("rewrite", path)
    assert result.code == 1
    where = repository.parent / where
    assert (f"; the diff applies in {where}" in result.out) == (where.resolve() != Path.cwd())
    monkeypatch.chdir(where)
    subprocess.run(["git", "apply"], input=result.stdout, check=True, capture_output=True)
    monkeypatch.chdir(repository.parent / here)
    assert " rewritten" not in patcher("rewrite", path).out


def test_base_of_the_diff_is_one_for_programs_too(repository, patcher, monkeypatch):
    """T18: json says where the diffs apply."""
    monkeypatch.chdir("sub")
    assert json.loads(patcher("rewrite", "--format", "json", "..").stdout)["base"] == str(
        repository
    )
    assert json.loads(patcher("rewrite", "--format", "json", ".").stdout)["base"] == ""


@pytest.mark.parametrize(
    "name", [b"t\tab", b'q"uote', b"s pace", b"\xff", "ä".encode(), b"n\nl", b"back\\slash"]
)
def test_diff_of_a_file_with_a_strange_name_can_be_applied(folder, process, name):
    """T6: a name with other bytes than text is spelled as git spells it."""
    path = Path(os.fsdecode(name + b".py"))
    path.write_bytes(OLD)
    result = process("rewrite", ".", cwd=folder)
    subprocess.run(["git", "apply"], input=result.stdout, check=True, capture_output=True)
    assert path.read_bytes() == NEW
    assert len(list(folder.iterdir())) == 1


def test_write_writes_and_a_second_run_changes_nothing(folder, patcher):
    put(folder, a=OLD, b=OTHER)
    result = patcher("rewrite", "--write", "a.py", "b.py")
    assert (result.code, result.err) == (0, "")
    assert "a.py: rewritten 2" in result.out
    assert "b.py: nothing to do" in result.out
    after = tree(folder)
    assert (folder / "a.py").read_bytes() == NEW
    assert (folder / "b.py").read_bytes() == OTHER
    again = patcher("rewrite", "--write", "a.py", "b.py")
    assert (again.code, again.err) == (0, "")
    assert "a.py: already" in again.out
    assert tree(folder) == after


def test_file_with_nothing_to_do_is_not_even_opened_for_writing(folder, patcher):
    put(folder, b=OTHER)
    before = os.stat("b.py")
    patcher("rewrite", "--write", ".")
    assert os.stat("b.py") == before or os.stat("b.py").st_mtime_ns == before.st_mtime_ns


def test_place_for_a_human_is_named_and_the_certain_ones_are_written(folder, patcher):
    put(folder, a=OLD + UNSURE)
    result = patcher("rewrite", "--write", ".")
    assert result.code == 1
    assert (folder / "a.py").read_bytes() == NEW + UNSURE
    assert "a.py:5:8: needs a human: configurable_gpus: there is no argparse parser" in result.out
    assert patcher("rewrite", "--write", ".").code == 1


@pytest.mark.parametrize(
    "select", [["--select", "reshape_topk"], ["--select=reshape_topk,reshape_topk"]]
)
def test_only_selected_patches_are_applied(folder, patcher, select):
    put(folder, a=OLD)
    assert patcher("rewrite", "--write", *select, "a.py").code == 0
    assert (folder / "a.py").read_bytes() == OLD.replace(b".view", b".reshape")


def test_both_spellings_are_added_where_that_is_asked_for(folder, patcher):
    put(folder, a=NEW)
    assert patcher("rewrite", "a.py").code == 0
    assert patcher("rewrite", "--write", "--both-spellings", "a.py").code == 0
    assert (folder / "a.py").read_bytes() == NEW.replace(
        b"'--local_rank'", b"'--local_rank', '--local-rank'"
    )


def lines(*paths: str, verbose: bool) -> list[str]:
    return [line for line, _ in results.text(batch.run(paths, jobs=1), verbose)]


def test_what_is_already_right_is_named_if_that_is_asked_for(folder):
    """T16: with -v a file that is already right is named, with the line that makes it so."""
    put(folder, a=NEW, b=OTHER, c=OLD + b"m = correct[:k].reshape(-1)\n")
    counted = "3 files: 1 to rewrite, 2 edits, 1 already, 1 nothing to do; "
    counted += "nothing was written, --write does that"
    assert lines(".", verbose=False) == [
        "c.py: would rewrite 2 (local_rank_from_env 1, reshape_topk 1)",
        counted,
    ]
    rank, topk, edits, other, last = lines(".", verbose=True)
    assert rank.startswith("a.py:2:") and ": already: local_rank_from_env: " in rank
    assert topk.startswith("a.py:3:5: already: reshape_topk: ")
    assert edits == "c.py: would rewrite 2 (local_rank_from_env 1, reshape_topk 1)"
    assert other.startswith("c.py:4:5: already: reshape_topk: ")
    assert last == counted
    assert lines("a.py", verbose=True)[:3] == ["a.py: already", rank, topk]


# Bytes

BYTES = {
    "crlf": (OLD.replace(b"\n", b"\r\n"), NEW.replace(b"\n", b"\r\n")),
    "mixed line endings": (OLD.replace(b"os\n", b"os\r\n"), NEW.replace(b"os\n", b"os\r\n")),
    "bom": (b"\xef\xbb\xbf" + OLD, b"\xef\xbb\xbf" + NEW),
    "bom and cookie": (
        b"\xef\xbb\xbf# coding: utf-8\r\n" + OLD,
        b"\xef\xbb\xbf# coding: utf-8\r\n" + NEW,
    ),
    "latin-1": (b"# coding: latin-1\nx = '\xe4'; " + OLD, b"# coding: latin-1\nx = '\xe4'; " + NEW),
    "cp1252 in the second line": (b"#!x\n# vim: set fileencoding=cp1252 :\n#\x80\n" + OLD, None),
    "utf-8": (
        "x = 'äöü€😀'; y = ".encode() + b"0\n" + OLD,
        "x = 'äöü€😀'; y = ".encode() + b"0\n" + NEW,
    ),
    "no final newline": (OLD[:-1], NEW[:-1]),
    "form feed": (b"\x0c\n" + OLD + b"\x0c\nx = '\x0b\x1c\x85'\n".replace(b"\x85", b""), None),
    "line separators in strings": (
        b"x = '\xe2\x80\xa8\xc2\x85'\n" + OLD,
        b"x = '\xe2\x80\xa8\xc2\x85'\n" + NEW,
    ),
    "tabs": (b"if x:\n\tpass\n" + OLD, b"if x:\n\tpass\n" + NEW),
    "trailing blanks": (OLD + b"   \n\t\n\n\n", NEW + b"   \n\t\n\n\n"),
}


@pytest.mark.parametrize("form", BYTES)
def test_bytes_outside_of_an_edit_are_kept(folder, patcher, form):
    before, after = BYTES[form]
    after = after or before.replace(OLD, NEW)
    put(folder, a=before)
    result = patcher("rewrite", "--write", "a.py")
    assert result.code == 0, result.out
    assert (folder / "a.py").read_bytes() == after


REFUSED = {
    "python 2": (OLD + b"print 'x'\n", 4, "Missing parentheses"),
    "merge markers": (
        OLD + b"<<<<<<< HEAD\nx = 1\n=======\nx = 2\n>>>>>>> b\n",
        4,
        "a merge that nobody has finished",
    ),
    "not utf-8": (OLD + b"# \x80\n", 4, "0x80"),
    "not in its own encoding": (b"# coding: ascii\n" + OLD + b"# \xe4\n", 5, "ascii"),
    "unknown encoding": (b"# coding: klingon\n" + OLD, 1, "klingon"),
    "cookie against bom": (b"\xef\xbb\xbf# coding: latin-1\n" + OLD, 1, "encoding problem"),
    "lone carriage return": (OLD + b"x = 1\ry = 2\n", 4, "lone carriage return"),
    "lone carriage return at the end": (OLD + b"x = 1\r", 4, "lone carriage return"),
    "null byte": (OLD + b"x = '\0'\n", 4, "null bytes"),
    "unfinished": (OLD + b"def f(:\n", 4, "invalid syntax"),
    "indentation": (OLD + b" x = 1\n", 4, "unexpected indent"),
    "does not compile": (b"def f(a, a):\n    correct[:k].view(-1)\n", 1, "duplicate argument"),
    "too deep": (OLD + b"(" * 3000 + b")" * 3000 + b"\n", 4, "too many nested"),
    "cut off utf-16": (b"\xff\xfe" + OLD, 1, "0xff"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_file_that_cannot_be_read_is_refused_by_name_and_the_others_are_written(
    folder, patcher, why
):
    source, line, words = REFUSED[why]
    put(folder, a=source, b=OLD)
    result = patcher("rewrite", "--write", ".")
    assert result.code == 1
    assert f"a.py:{line}" in result.out
    assert words in result.out
    assert "cannot parse" in result.out
    assert (folder / "a.py").read_bytes() == source
    assert (folder / "b.py").read_bytes() == NEW


def test_file_that_no_patch_can_concern_is_not_parsed(folder, patcher):
    put(folder, a=b"print 'x'\n")
    result = patcher("rewrite", "--write", "a.py")
    assert (result.code, result.out.splitlines()[0]) == (0, "a.py: nothing to do")


# Modes, links, failures


@pytest.mark.parametrize("mode", [0o755, 0o600, 0o664, 0o4755])
def test_mode_is_kept(folder, patcher, mode):
    put(folder, a=OLD)
    os.chmod("a.py", mode)
    patcher("rewrite", "--write", "a.py")
    assert (folder / "a.py").read_bytes() == NEW
    assert stat.S_IMODE(os.stat("a.py").st_mode) == mode


def test_symbolic_link_that_is_named_stays_one_and_its_target_is_rewritten(folder, patcher):
    put(folder.parent / "elsewhere", real=OLD)
    os.symlink("../elsewhere/real.py", "link.py")
    assert patcher("rewrite", "--write", "link.py").code == 0
    assert os.readlink("link.py") == "../elsewhere/real.py"
    assert (folder.parent / "elsewhere/real.py").read_bytes() == NEW
    assert sorted(os.listdir("../elsewhere")) == ["real.py"]


def test_symbolic_link_that_leads_out_of_a_folder_is_said_and_not_followed(folder, patcher):
    put(folder.parent / "elsewhere", real=OLD)
    os.symlink("../elsewhere/real.py", "link.py")
    for mode in ("--write", "--diff"):
        result = patcher("rewrite", mode, ".")
        assert result.code == 1
        assert "link.py: not rewritten: a symbolic link to" in result.out
    assert (folder.parent / "elsewhere/real.py").read_bytes() == OLD


def test_symbolic_link_within_a_folder_is_one_file_with_its_target(folder, patcher):
    put(folder, real=OLD)
    os.symlink("real.py", "a_link.py")
    result = patcher("rewrite", "--write", ".")
    assert "1 file: 1 rewritten" in result.out
    assert os.path.islink("a_link.py")
    assert (folder / "real.py").read_bytes() == NEW


def test_hard_link_is_not_parted_silently(folder, patcher):
    put(folder, a=OLD)
    os.link("a.py", "b.txt")
    for mode in ("--write", "--diff"):
        result = patcher("rewrite", mode, "a.py")
        assert result.code == 1
        assert "a.py: not rewritten: the file has 2 names (hard links)" in result.out
    assert (folder / "a.py").read_bytes() == OLD
    assert os.stat("a.py").st_nlink == 2


def test_write_protected_file_is_said_and_left(folder, patcher, monkeypatch):
    put(folder, a=OLD)
    monkeypatch.setattr(
        write.os, "access", lambda path, mode: False
    )  # as root everything may be written
    for mode in ("--write", "--diff"):
        result = patcher("rewrite", mode, "a.py")
        assert result.code == 1
        assert "a.py: not rewritten: the file is write-protected" in result.out
    assert (folder / "a.py").read_bytes() == OLD


def test_file_that_somebody_changes_meanwhile_is_left_as_they_made_it(folder):
    put(folder, a=OLD)
    _, was = write.read("a.py")
    (folder / "a.py").write_bytes(OTHER)
    with pytest.raises(write.NotReplaced, match="in the meantime"):
        write.replace("a.py", NEW, was)
    assert tree(folder).keys() == {"a.py"}
    assert (folder / "a.py").read_bytes() == OTHER


def test_two_runs_do_not_write_one_file_at_once(folder):
    put(folder, a=OLD)
    _, was = write.read("a.py")
    fd = write._open(".a.py.patcher-new")
    with pytest.raises(write.NotReplaced, match="another run"):
        write.replace("a.py", NEW, was)
    os.close(fd)
    write.replace("a.py", NEW, was)
    assert (folder / "a.py").read_bytes() == NEW


@pytest.mark.parametrize("call", ["fsync", "replace", "chmod"])
def test_failed_write_leaves_the_file_and_no_litter(folder, patcher, monkeypatch, call):
    put(folder, a=OLD, b=UNSURE)

    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write.os, call, fail)
    before = tree(folder)
    result = patcher("rewrite", "--write", ".")
    assert result.code == 2
    assert "a.py: No space left on device; the file is as it was" in result.out
    assert "1 failed" in result.out
    assert tree(folder) == before


@pytest.mark.parametrize("call", ["chmod", "fsync", "stat", "replace"])
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_killed_run_leaves_the_old_or_the_new_file_and_the_next_run_tidies_up(
    folder, process, call, late
):
    put(folder, a=OLD)
    os.chmod("a.py", 0o751)
    program = (
        "import os, signal, sys\nimport patcher.cli\nfrom patcher.rewrite import write\n"
        f"call, late = os.{call}, {late}\n"
        "def killed(*args, **kwargs):\n"
        "    new = '.patcher-new' in str(args) or call is os.fsync\n"
        "    if not new and not isinstance(args[0], int):\n"
        "        return call(*args, **kwargs)\n"
        "    late and call(*args, **kwargs)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        f"os.{call} = killed\n"
        "patcher.cli.main(['rewrite', '--write', 'a.py'])\n"
    )
    result = process(args=("-c", program), cwd=folder)
    assert result.code == -signal.SIGKILL
    assert (folder / "a.py").read_bytes() == (NEW if call == "replace" and late else OLD)
    assert stat.S_IMODE(os.stat("a.py").st_mode) == 0o751
    assert process("rewrite", "--write", ".", cwd=folder).code == 0
    assert tree(folder).keys() == {"a.py"}
    assert (folder / "a.py").read_bytes() == NEW
    assert stat.S_IMODE(os.stat("a.py").st_mode) == 0o751


def test_file_that_may_not_be_read_is_a_failure_that_names_it(folder, patcher, monkeypatch):
    put(folder, a=OLD, b=OLD)
    real = open

    def refuse(path, *args, **kwargs):
        if str(path) == "a.py":
            raise PermissionError(13, "Permission denied")
        return real(path, *args, **kwargs)

    monkeypatch.setattr(write, "open", refuse, raising=False)
    result = patcher("rewrite", "--write", "a.py", "b.py")
    assert result.code == 2
    assert "a.py: Permission denied" in result.out
    assert (folder / "b.py").read_bytes() == NEW


# Which files


def names(*paths, exclude=()) -> list[str]:
    return [file.path for file in find([str(path) for path in paths], exclude)]


def git(*argv):
    subprocess.run(["git", *argv], check=True, capture_output=True)


@pytest.fixture
def repository(folder):
    git("init", "-q")
    put(folder, tracked=OLD, new=OLD, ignored=OLD, build__made=OLD, sub__deep=OLD, sub__local=OLD)
    (folder / ".gitignore").write_text("/ignored.py\nbuild/\n")
    (folder / "sub/.gitignore").write_text("local.py\n")
    git("add", "tracked.py")
    return folder


def test_folder_in_a_git_tree_is_searched_as_git_sees_it(repository):
    assert names(".") == ["new.py", "sub/deep.py", "tracked.py"]
    assert names("sub") == ["sub/deep.py"]
    assert names(repository) == [
        str(repository / name) for name in ("new.py", "sub/deep.py", "tracked.py")
    ]


def test_ignored_file_that_is_named_is_meant(repository):
    assert names("ignored.py", "build/made.py") == ["ignored.py", "build/made.py"]


def test_tracked_file_that_is_gone_is_not_missed(repository):
    os.unlink("tracked.py")
    assert names(".") == ["new.py", "sub/deep.py"]


def test_no_program_that_a_repository_names_is_run(repository):
    git("config", "core.fsmonitor", f"touch {repository}/ran; false")
    assert "tracked.py" in names(".")
    assert not Path("ran").exists()


def test_folder_outside_of_git_is_walked_without_what_nobody_edits(folder, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(folder.parent))
    put(folder, a=OLD, sub__b=OLD, __pycache____c=OLD, node_modules__d=OLD, env__lib__e=OLD)
    put(folder / ".hidden", f=OLD)
    (folder / "__pycache__").mkdir(exist_ok=True)
    (folder / "__pycache__/c.py").write_bytes(OLD)
    (folder / "env/pyvenv.cfg").write_text("")
    (folder / "notes.txt").write_bytes(OLD)
    os.symlink(".", "loop")
    assert names(".") == ["a.py", "sub/b.py"]


def test_repository_in_a_folder_that_is_none_is_searched_as_git_sees_it(repository, monkeypatch):
    """T3: what git ignores is left alone also in a repository below the folder that is named."""
    monkeypatch.chdir(repository.parent)
    put(repository.parent, own=OLD)
    assert names(".") == ["own.py", "tree/new.py", "tree/sub/deep.py", "tree/tracked.py"]


@pytest.fixture
def dubious(repository, monkeypatch):
    """A repository that git takes for that of another user."""
    program, found = repository.parent / "bin/git", shutil.which("git")
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nGIT_TEST_ASSUME_DIFFERENT_OWNER=1 exec {found} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    return repository


@pytest.mark.parametrize("path", [".", "sub", ".."])
@pytest.mark.parametrize("mode", ["--write", "--diff"])
def test_repository_that_git_refuses_is_left_with_the_advice_of_git(dubious, patcher, mode, path):
    """T3: if git refuses the repository for its owner, nothing in it is touched, and one line says
    why.
    """
    before = tree(dubious)
    result = patcher("rewrite", mode, path)
    assert (result.code, result.out, tree(dubious)) == (2, "", before)
    assert (
        "it is not known what git ignores here: git says: detected dubious ownership in repository"
        in result.err
    )
    assert (
        "To add an exception for this directory, call: git config --global --add safe.directory "
        in result.err
    )
    assert patcher("rewrite", "--write", "ignored.py", "s*/d*.py").code == 0
    assert (dubious / "ignored.py").read_bytes() == (dubious / "sub/deep.py").read_bytes() == NEW


def test_repository_without_git_is_left(repository, patcher, monkeypatch):
    """T3: without git nothing in a repository is touched, because nobody knows what it ignores."""
    monkeypatch.setenv("PATH", "")
    before = tree(repository)
    result = patcher("rewrite", "--write", "sub")
    assert (result.code, result.out, tree(repository)) == (2, "", before)
    assert "sub: nothing is rewritten, because it is not known what git ignores here" in result.err
    assert "git is not installed" in result.err
    shutil.rmtree(".git")
    assert patcher("rewrite", "--write", "sub").code == 0


def test_work_tree_whose_repository_is_gone_is_left(folder, patcher):
    """T3: a work tree of which git cannot find the repository is no folder outside of git."""
    put(folder, a=OLD)
    (folder / ".git").write_text("gitdir: /nowhere\n")
    result = patcher("rewrite", "--write", ".")
    assert result.code == 2
    assert "git says: not a git repository: /nowhere" in result.err
    assert (folder / "a.py").read_bytes() == OLD


@pytest.mark.parametrize("named", ["nowhere", "other/.git"])
def test_folder_is_searched_in_its_own_repository_in_a_hook_too(repository, monkeypatch, named):
    """T4: variables that git sets in a hook, for the repository of the hook, do not lead the
    search.
    """
    git("init", "-q", "../other")
    monkeypatch.setenv("GIT_DIR", str(repository.parent / named))
    monkeypatch.setenv("GIT_WORK_TREE", str(repository.parent / "other"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(repository.parent / "index"))
    monkeypatch.setenv("GIT_LITERAL_PATHSPECS", "1")
    assert names(".") == ["new.py", "sub/deep.py", "tracked.py"]


def test_environment_in_a_git_tree_is_left_out_though_git_does_not_ignore_it(repository):
    put(repository, env__lib__e=OLD)
    (repository / "env/pyvenv.cfg").write_text("")
    assert names(".") == ["new.py", "sub/deep.py", "tracked.py"]


@pytest.mark.parametrize("pattern", ["sub", "sub/", "sub/*", "deep.py", "*/deep.py", "s*b"])
def test_excluded_files_are_left_out(repository, pattern):
    assert names(".", exclude=[pattern]) == ["new.py", "tracked.py"]


def test_pattern_finds_files_and_a_file_counts_once(repository):
    assert names("*.py", ".", "new.py") == ["ignored.py", "new.py", "tracked.py", "sub/deep.py"]
    assert names("**/deep.py") == ["sub/deep.py"]


@pytest.mark.parametrize("path", ["nosuch", "no*such", "sub/nosuch.py"])
def test_path_that_leads_to_nothing_is_bad_usage_and_nothing_is_read(repository, patcher, path):
    before = tree(repository)
    result = patcher("rewrite", "--write", ".", path)
    assert result.code == 2
    assert f"{path}: there is no such file or folder" in result.err
    assert result.out == ""
    assert tree(repository) == before


@pytest.mark.parametrize(
    "arguments, says",
    [
        ([], "PATH"),
        (
            ["--select", "nosuch", "."],
            "there is no such patch for other scripts; there are: local_rank_from_env",
        ),
        (["--write", "--diff", "."], "not allowed with"),
        (["-j", "0", "."], "expected 1 or more"),
        (["-j", "x", "."], "invalid int"),
        (["--format", "xml", "."], "invalid choice"),
        (["--series", "guide", "."], "unrecognized"),
    ],
)
def test_bad_usage_ends_in_2(folder, patcher, arguments, says):
    result = patcher("rewrite", *arguments)
    assert result.code == 2
    assert says in result.err
    assert result.out == ""


def test_empty_folder_is_fine(folder, patcher):
    assert patcher("rewrite", ".") == (0, b"0 files: none\n", b"")


def test_every_patch_for_other_scripts_is_one_of_the_series():
    """Except for the one fault that no script of the guide has."""
    assert all(
        (REPO / f"patches/{name}.py").is_file() for name in PATCHES if name != "async_keyword"
    )


# stdin


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
def test_script_in_an_encoding_without_ascii_is_named(folder, patcher, encoding):
    """T14: a script in UTF-16 or UTF-32 is not "nothing to do", if a patch may concern it."""
    put(folder, a=OLD.decode().encode(encoding), b=OTHER.decode().encode(encoding), c=OLD)
    result = patcher("rewrite", "--write", ".")
    assert result.code == 1
    why = f"{encoding[:6].upper()}, in which Python reads no script; save it as UTF-8"
    assert f"a.py: cannot parse: {why}" in result.out
    assert "3 files: 1 rewritten, 2 edits, 1 nothing to do, 1 cannot be parsed" in result.out
    assert (folder / "a.py").read_bytes() == OLD.decode().encode(encoding)


def test_utf_16_on_stdin_is_named_and_passed_on(folder):
    """T14: the same for a script on stdin."""
    argv = [sys.executable, "-m", "patcher", "rewrite", "--write", "-"]
    source = OLD.decode().encode("utf-16")
    done = subprocess.run(argv, input=source, capture_output=True, env=environment())
    assert (done.returncode, done.stdout) == (1, source)
    assert b"<stdin>: cannot parse: UTF-16" in done.stderr


def test_script_from_stdin_is_shown_as_a_diff(folder, process):
    done = subprocess.run(
        [sys.executable, "-m", "patcher", "rewrite", "-"],
        input=OLD,
        capture_output=True,
        env=environment(),
    )
    assert done.returncode == 1
    assert b"+n = correct[:k].reshape(-1)\n" in done.stdout
    assert b"<stdin>: would rewrite 2" in done.stdout


@pytest.mark.parametrize(
    "source, after, code",
    [(OLD, NEW, 0), (OTHER, OTHER, 0), (UNSURE, UNSURE, 1), (b"f(", b"f(", 0)],
)
def test_script_from_stdin_goes_to_stdout_with_write(folder, source, after, code):
    done = subprocess.run(
        [sys.executable, "-m", "patcher", "rewrite", "--write", "-"],
        input=source,
        capture_output=True,
        env=environment(),
    )
    assert done.stdout == after
    assert done.returncode == code
    assert (b"needs a human" in done.stderr) == (code == 1)


def test_stdin_is_read_beside_many_files(many, folder):
    argv = [sys.executable, "-m", "patcher", "rewrite", "-j", "2", ".", "-"]
    done = subprocess.run(argv, input=OLD, capture_output=True, env=environment(), cwd=many)
    assert b"<stdin>: would rewrite 2" in done.stdout


@pytest.mark.parametrize("form", ["text", "json", "github"])
def test_name_that_is_no_text_is_shown_as_it_can_be(folder, process, form):
    name = os.fsdecode(b"a\xff.py")
    Path(name).write_bytes(OLD)
    result = process("rewrite", "--format", form, ".", cwd=folder)
    assert (result.code, result.err) == (1, "")
    assert ("a" in result.out and "xff" in result.out) or "udcff" in result.out
    assert process("rewrite", "--write", ".", cwd=folder).code == 0
    assert Path(name).read_bytes() == NEW


# Processes


@pytest.fixture
def many(folder):
    """More files than one process is given."""
    sources = [OLD, OTHER, NEW, UNSURE, b"print 'x'  # add_argument local_rank\n", OLD[:-1]]
    for number in range(150):
        put(folder, **{f"f{number:03}": sources[number % len(sources)]})
    return folder


@pytest.mark.parametrize("form", ["text", "json", "github"])
def test_number_of_processes_makes_no_difference(many, process, form):
    one = process("rewrite", "-j", "1", "--format", form, ".", cwd=many)
    three = process("rewrite", "-j", "3", "--format", form, ".", cwd=many)
    assert one == three
    assert one.code == 1
    assert "150 files: 50 to rewrite, 100 edits, 25 already, 25 nothing to do" in one.out
    assert "25 need a human, 25 cannot be parsed" in one.out


def test_many_processes_write_what_one_writes(many, process):
    other = many.parent / "other"
    shutil.copytree(many, other)
    process("rewrite", "-j", "1", "--write", ".", cwd=many)
    process("rewrite", "-j", "4", "--write", ".", cwd=other)
    assert tree(many) == tree(other)
    assert (many / "f000.py").read_bytes() == NEW


def test_process_that_is_killed_is_said_and_leaves_whole_files(many, process):
    program = (
        "import os, signal\nimport patcher.cli\nreplace = os.replace\n"
        "def killed(old, new):\n"
        "    if new.endswith('f120.py'):\n        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    replace(old, new)\n"
        "os.replace = killed\n"
        "raise SystemExit(patcher.cli.main(['rewrite', '-j', '2', '--write', '.']))\n"
    )
    result = process(args=("-c", program), cwd=many)
    assert result.code == 2
    assert "a process was killed" in result.out + result.err
    assert "Traceback" not in result.out + result.err
    for number in range(0, 150, 6):
        assert (many / f"f{number:03}.py").read_bytes() in (OLD, NEW)


def test_interrupted_run_says_nothing_and_leaves_whole_files(many, process):
    for number in range(150, 1500):
        put(many, **{f"f{number:04}": OLD})
    argv = [sys.executable, "-m", "patcher", "rewrite", "-j", "2", "--write", "."]
    done = subprocess.Popen(
        argv,
        cwd=many,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    while b".reshape" not in (many / "f000.py").read_bytes():
        assert done.poll() is None
    os.killpg(done.pid, signal.SIGINT)
    out, err = done.communicate(timeout=60)
    assert (done.returncode, out, err) == (130, b"", b"")
    left = {path.read_bytes() for path in many.glob("f????.py")}
    assert OLD in left
    assert left <= {OLD, NEW}
    assert not list(many.glob(".*"))


def test_bar_is_shown_on_a_terminal_and_nowhere_else(many, process):
    pytest.importorskip("rich")
    for number in range(150, batch.MANY + 1):
        put(many, **{f"f{number:03}": OTHER})
    assert process("rewrite", "--write", ".", cwd=many).err == ""
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-m", "patcher", "rewrite", "."]
    done = subprocess.Popen(
        argv, cwd=many, env=environment(TERM="xterm"), stdout=subprocess.DEVNULL, stderr=theirs
    )
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 4096):
            shown += chunk
    except OSError:  # the terminal is gone with the process
        pass
    os.close(ours)
    done.wait()
    assert b"100%" in shown


def test_nothing_heavy_is_imported(folder, process):
    put(folder, a=OLD)
    trace = process(
        "rewrite", "--write", "a.py", args=("-X", "importtime", "-m", "patcher"), cwd=folder
    ).err
    assert "patcher.rewrite.rewrite" in trace
    for module in ("libcst", "rich", "concurrent", "multiprocessing", "difflib"):
        assert f" {module}\n" not in trace and f" {module}." not in trace, module


# Formats


def test_json_says_everything(folder, patcher):
    put(folder, a=OLD, b=OTHER, c=UNSURE, d=OLD + b"f(\n")
    result = patcher("rewrite", "--format", "json", ".")
    found = json.loads(result.stdout)
    assert result.code == found["exit"] == 1
    assert found["written"] is False
    a, b, c, d = found["files"]
    assert (a["file"], a["state"], a["changed"]) == ("a.py", "rewritten", True)
    assert a["edits"] == {"local_rank_from_env": 1, "reshape_topk": 1}
    assert "+n = correct[:k].reshape(-1)" in a["diff"]
    why = "flattens the slice with reshape"
    finding = {"patch": "reshape_topk", "state": "rewritten", "line": 3, "column": 5, "why": why}
    assert a["findings"][1] == finding
    assert (b["state"], b["findings"], b["diff"]) == ("nothing to do", [], "")
    assert (c["state"], c["findings"][0]["line"]) == ("needs a human", 2)
    assert (d["state"], d["problem"]["line"]) == ("cannot parse", 4)


def test_github_annotates_what_waits_for_somebody(folder, patcher):
    put(folder, a=OLD, b=OTHER, c=UNSURE, d=OLD + b"f(\n")
    lines = patcher("rewrite", "--format", "github", ".").out.splitlines()
    assert lines[0].startswith(
        "::error file=a.py,line=2,col=1,title=patcher rewrite::local_rank_from_env: "
    )
    assert lines[2].startswith(
        "::error file=c.py,line=2,col=8,title=patcher rewrite::needs a human: "
    )
    assert lines[3].startswith("::error file=d.py,line=4,")
    assert lines[4].startswith("::notice title=patcher::4 files: ")
    written = patcher("rewrite", "--write", "--format", "github", "a.py").out.splitlines()
    assert len(written) == 1
