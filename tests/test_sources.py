"""Folders, archives and git repositories, read into memory: what arrives, and what hostile ones do not get."""

import contextlib
import io
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest
from conftest import environment

from patcher.core.problem import Problem, UsageError
from patcher.vendor import archive, arrived, git, sources
from patcher.vendor.arrived import Arrived

HEX = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "distributed.py": b"x = 1\r\n",
    "LICENSE": b"MIT",
    "more/distributed.py": b"y\n",
    "data.bin": b"\0\xff",
}


def limit(monkeypatch, **limits) -> None:
    """Set limits of what may arrive, in each module that reads them."""
    for module in (archive, arrived, git, sources):
        for name in limits.keys() & vars(module).keys():
            monkeypatch.setattr(module, name, limits[name])


def wanted(path: str) -> bool:
    return path.rpartition("/")[2] in ("distributed.py", "LICENSE")


READ = {path: content for path, content in FILES.items() if wanted(path)}


def fetch(source, rev=None, timeout=60) -> Arrived:
    return sources.fetch(str(source), wanted, rev, timeout)


def write(folder: Path, files=FILES) -> Path:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def refused(source, **options) -> str:
    with pytest.raises(Problem) as caught:
        fetch(source, **options)
    assert caught.value.code == 2
    return str(caught.value)


# What SOURCE is


@pytest.mark.parametrize(
    "source",
    [
        "https://example.org/a/b",
        "file:///a/b",
        "git@example.org:a/b.git",
        "host:a/b",
        "ext::sh -c true",
    ],
)
def test_address_is_taken_for_one(source):
    assert git.is_url(source)


@pytest.mark.parametrize(
    "source", ["a/b", "/a/b", ".", "C:\\a b\\s.py", "C:/a b", "D:new scripts", "a.zip", "ab:\\c"]
)
def test_path_is_not_taken_for_an_address_even_with_a_drive_letter(source):
    assert not git.is_url(source)


def test_what_is_not_there_or_is_no_source_is_bad_usage(tmp_path):
    (tmp_path / "a.txt").write_text("no archive")
    assert "there is no such folder, repository or archive" in refused(tmp_path / "nosuch")
    assert "not an archive that can be read" in refused(tmp_path / "a.txt")
    assert "download it first" in refused("https://example.org/archive/main.tar.gz")


@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_rev_is_refused_where_there_are_none(tmp_path, kind):
    source = write(tmp_path / "folder") if kind == "folder" else zipped(tmp_path / "a.zip")
    assert "is not a git repository" in refused(source, rev="main")


# Folders


def test_folder_is_read_without_hidden_folders(tmp_path):
    arrived = fetch(
        write(
            tmp_path, {**FILES, ".venv/distributed.py": b"no", "__pycache__/distributed.py": b"no"}
        )
    )
    assert (arrived.kind, arrived.files, sorted(arrived.paths)) == ("folder", READ, sorted(FILES))
    assert (arrived.commit, arrived.repository) == ("", "")


def test_links_in_a_folder_are_not_followed(tmp_path):
    write(tmp_path / "outside", {"distributed.py": b"secret"})
    folder = write(tmp_path / "folder", {"LICENSE": b"MIT"})
    (folder / "linked").symlink_to(tmp_path / "outside")
    (folder / "else.py").symlink_to(tmp_path / "outside/distributed.py")
    assert list(fetch(folder).files) == ["LICENSE"]
    (folder / "distributed.py").symlink_to(tmp_path / "outside/distributed.py")
    assert "distributed.py is a link" in refused(folder)


def test_source_itself_may_be_a_link(tmp_path):
    (tmp_path / "link").symlink_to(write(tmp_path / "folder"))
    assert fetch(tmp_path / "link").files == READ


def test_folder_without_end_and_script_without_end_are_refused(tmp_path, monkeypatch):
    write(tmp_path)
    limit(monkeypatch, SCRIPT=6)
    assert "distributed.py: larger than" in refused(tmp_path)
    limit(monkeypatch, ENTRIES=3)
    assert "more than 3 files" in refused(tmp_path)


# Archives


def zipped(path: Path, files=FILES, top="", links=(), comment=b"") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(top + name, content)
        for name, target in dict(links).items():
            entry = zipfile.ZipInfo(top + name)
            entry.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(entry, target)
        archive.comment = comment
    return path


def tarred(path: Path, files=FILES, top="", links=(), comment=b"", kind=tarfile.SYMTYPE) -> Path:
    headers = {"comment": comment.decode()} if comment else {}
    mode = {".gz": "w:gz", ".bz2": "w:bz2", ".xz": "w:xz"}.get(path.suffix, "w")
    with tarfile.open(path, mode, format=tarfile.PAX_FORMAT, pax_headers=headers) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(top + name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        for name, target in dict(links).items():
            entry = tarfile.TarInfo(top + name)
            entry.type, entry.linkname = kind, target
            archive.addfile(entry)
    return path


MAKE = {
    "a.zip": zipped,
    "a.tar": tarred,
    "a.tar.gz": tarred,
    "a.tgz.gz": tarred,
    "a.tar.bz2": tarred,
    "a.tar.xz": tarred,
}


@pytest.fixture(params=MAKE)
def pack(request, tmp_path):
    return lambda *args, **options: MAKE[request.param](tmp_path / request.param, *args, **options)


@pytest.mark.parametrize("top", ["", "project-main/"])
def test_archive_is_read_and_a_folder_around_all_of_it_is_left_out(pack, top):
    arrived = fetch(pack(top=top, comment=HEX.encode()))
    assert (arrived.kind, arrived.files, arrived.paths) == ("archive", READ, sorted(FILES))
    assert arrived.commit == HEX  # where `git archive`, and so GitHub, leaves it


def test_comment_that_is_no_commit_is_none(pack):
    assert fetch(pack(comment=b"hello")).commit == ""


OUTSIDE = [
    "../distributed.py",
    "a/../../distributed.py",
    "/distributed.py",
    "..\\distributed.py",
    "C:\\distributed.py",
]


@pytest.mark.parametrize("name", [*OUTSIDE, "C:distributed.py", "../harmless.txt"])
def test_archive_with_a_path_that_leads_out_is_refused(pack, name):
    assert "which would lie outside" in refused(pack({**FILES, name: b"x"}))


@pytest.mark.parametrize("target", ["/etc/passwd", "../up", "more/../../up", "..\\up", "C:\\up"])
def test_archive_with_a_link_that_leads_out_is_refused(pack, target):
    assert "leads outside" in refused(pack(links={"link": target}))


def test_hard_link_that_leads_out_is_refused(tmp_path):
    archive = tarred(tmp_path / "a.tar", links={"more/link": "../up"}, kind=tarfile.LNKTYPE)
    assert "leads outside" in refused(archive)


def test_link_within_an_archive_is_ignored_unless_it_is_one_of_ours(pack):
    assert (
        fetch(pack(links={"link": "more/distributed.py", "more/back": "../LICENSE"})).files == READ
    )
    files = {"LICENSE": b"MIT", "real.py": b"x\n"}
    assert "distributed.py is a link" in refused(pack(files, links={"distributed.py": "real.py"}))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_script_that_is_in_an_archive_twice_is_refused(tmp_path):
    for path, opened in ((tmp_path / "a.zip", zipfile.ZipFile), (tmp_path / "a.tar", tarfile.open)):
        MAKE[path.name](path)
        with opened(path, "a") as archive:
            if path.suffix == ".zip":
                archive.writestr("distributed.py", "other")
            else:
                archive.addfile(tarfile.TarInfo("distributed.py"), io.BytesIO())
        assert "distributed.py is in it twice" in refused(path)


def test_bomb_is_refused_before_it_has_gone_off(pack, monkeypatch):
    limit(monkeypatch, SCRIPT=1 << 20)
    limit(monkeypatch, UNPACKED=8 << 20)
    bomb = {"distributed.py": bytes(16 << 20)}
    assert "larger than 1 MiB" in (said := refused(pack(bomb))) or "more than 8 MiB" in said


def test_bomb_beside_what_is_wanted_is_refused_too(tmp_path, monkeypatch):
    limit(monkeypatch, UNPACKED=8 << 20)
    assert "more than 8 MiB when unpacked" in refused(
        tarred(tmp_path / "a.tar.gz", {"data": bytes(16 << 20), **FILES})
    )


def test_archive_without_end_is_refused(pack, monkeypatch):
    limit(monkeypatch, ENTRIES=3)
    assert "more than 3 files" in refused(pack())


@pytest.mark.parametrize("part", [0.3, 0.5, 0.7])
def test_archive_that_was_cut_off_is_refused(pack, part):
    archive = pack({**FILES, "distributed.py": os.urandom(30_000)})
    archive.write_bytes(archive.read_bytes()[: int(archive.stat().st_size * part)])
    assert "not an archive that can be read" in refused(archive)


def test_damaged_and_encrypted_archives_are_refused(tmp_path):
    archive = zipped(tmp_path / "a.zip", {"distributed.py": os.urandom(3000)})
    content = bytearray(archive.read_bytes())
    content[1500] ^= 1
    archive.write_bytes(content)
    assert "not an archive that can be read" in refused(archive)
    content[1500] ^= 1
    content[6] |= 1  # the flag that says encrypted, in both headers
    content[content.index(b"PK\x01\x02") + 8] |= 1
    archive.write_bytes(content)
    assert "encrypted" in refused(archive)


def test_name_that_is_no_text_is_refused(tmp_path):
    archive = zipped(tmp_path / "a.zip", {"\xe9.py": b""})
    archive.write_bytes(archive.read_bytes().replace("\xe9.py".encode(), b"\xff\xff.py"))
    assert "not an archive that can be read" in refused(archive)


def test_archive_with_wrong_bytes_in_it_is_read_or_refused_and_no_crash(pack):
    archive = pack({**FILES, "distributed.py": b"x = 1\n" * 50}, comment=HEX.encode())
    content, chance = archive.read_bytes(), random.Random(0)
    for _ in range(100):
        damaged = bytearray(content)
        for _ in range(chance.choice([1, 1, 3])):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        archive.write_bytes(damaged)
        try:
            fetch(archive)
        except Problem as problem:
            assert problem.code == 2


# Git

USER = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always"]


def in_git(folder: Path, *arguments) -> str:
    env = environment(
        GIT_CONFIG_GLOBAL=os.devnull,
        GIT_CONFIG_NOSYSTEM="1",
        GIT_COMMITTER_DATE="2021-08-19T12:00:00Z",
    )
    command = ["git", *USER, *map(str, arguments)]
    return subprocess.run(
        command, cwd=folder, env=env, check=True, capture_output=True, text=True
    ).stdout.strip()


def repository(folder: Path, *commits) -> Path:
    """A repository with a commit for each of these sets of files, and the tags v1, v2 and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    in_git(folder, "init", "--quiet", "--initial-branch=main", "--template=")
    for number, files in enumerate(commits, 1):
        write(folder, files)
        in_git(folder, "add", "--all")
        in_git(folder, "commit", "--quiet", "--message", f"{number}")
        in_git(folder, "tag", "--annotate", f"v{number}", "--message", f"{number}")
    return folder


@pytest.fixture
def four(tmp_path) -> Path:
    return repository(
        tmp_path / "four", *({**FILES, "distributed.py": b"x = %d\r\n" % n} for n in range(1, 5))
    )


@pytest.mark.parametrize("shape", ["work tree", "bare", "file URL", "worktree", "link"])
def test_repository_is_read_at_its_head(four, tmp_path, shape):
    source = four
    if shape == "bare":
        in_git(tmp_path, "clone", "--quiet", "--bare", four, source := tmp_path / "bare.git")
    elif shape == "file URL":
        source = four.as_uri()
    elif shape == "worktree":
        in_git(four, "worktree", "add", "--quiet", source := tmp_path / "worktree")
    elif shape == "link":
        (source := tmp_path / "link").symlink_to(four)
    arrived = fetch(source)
    assert arrived.files == {**READ, "distributed.py": b"x = 4\r\n"}
    assert (arrived.kind, arrived.paths) == ("git", sorted(FILES))
    assert (arrived.commit, arrived.date) == (in_git(four, "rev-parse", "HEAD"), "2021-08-19")
    assert arrived.repository == ""  # a path of this machine is of no use to anybody else


@pytest.mark.parametrize("name", ["v2", "side", "HEAD~2", "full", "short", "refs/tags/v2", "v3~1"])
@pytest.mark.parametrize("url", [False, True])
def test_revision_may_be_a_branch_a_tag_or_a_commit(four, name, url):
    in_git(four, "branch", "side", "v2")
    commit = in_git(four, "rev-parse", "v2^{commit}")
    arrived = fetch(
        four.as_uri() if url else four, rev={"full": commit, "short": commit[:7]}.get(name, name)
    )
    assert (arrived.commit, arrived.files["distributed.py"]) == (commit, b"x = 2\r\n")


@pytest.mark.parametrize(
    "rev", ["nosuch", "abcdef1", "0" * 40, "v1:LICENSE", "--upload-pack=true", "-h", "", "a b"]
)
def test_revision_that_is_not_there_is_bad_usage(four, rev):
    with pytest.raises(UsageError, match="--rev"):
        fetch(four, rev=rev)


def test_only_the_commit_itself_is_fetched(four, monkeypatch):
    seen = []
    run = git._Git.__call__

    def spy(self, *arguments):
        seen.append(arguments[0])
        if arguments[0] == "ls-tree":
            seen.append(
                (self.folder / "shallow").exists()
                and run(self, "rev-list", "--count", arguments[-1])
            )
        return run(self, *arguments)

    monkeypatch.setattr(git._Git, "__call__", spy)
    fetch(four.as_uri(), rev="v3")
    assert b"1\n" in seen
    assert not {"checkout", "clone", "submodule"} & set(seen)


def test_bytes_are_those_of_the_commit_whatever_this_machine_does_to_line_endings(
    four, tmp_path, monkeypatch
):
    (tmp_path / "config").write_text("[core]\n\tautocrlf = true\n\teol = crlf\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    write(four, {".gitattributes": b"*.py text eol=lf\n", "LICENSE": b"a\nb\n"})
    in_git(four, "add", ".")
    in_git(four, "commit", "--quiet", "--message=attributes")
    assert fetch(four).files["LICENSE"] == b"a\nb\n"
    assert fetch(four, rev="v4").files["distributed.py"] == b"x = 4\r\n"


def test_uncommitted_edits_are_named_and_do_not_count(four):
    write(four, {"distributed.py": b"edited\n"})
    arrived = fetch(four)
    assert arrived.files["distributed.py"] == b"x = 4\r\n"
    assert arrived.notes == [
        "the work tree differs, and the last commit is what counts: distributed.py"
    ]
    assert fetch(four, rev="v1").notes == []


def test_repository_without_a_commit_is_an_error_and_no_crash(tmp_path):
    assert "git says: couldn't find remote ref HEAD" in refused(repository(tmp_path / "empty"))


def test_script_that_is_a_link_or_too_large_in_a_repository_is_refused(four, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(git, "SCRIPT", 6)
        assert "distributed.py: larger than" in refused(four)
    (four / "distributed.py").unlink()
    (four / "distributed.py").symlink_to("/etc/passwd")
    in_git(four, "add", ".")
    in_git(four, "commit", "--quiet", "--message=link")
    assert "distributed.py is a link" in refused(four)


@pytest.fixture
def hostile(four, tmp_path) -> Path:
    """A repository that runs a program of its own in every way that it can be made to: each leaves a file `ran-...`."""
    sub = repository(tmp_path / "sub", {"distributed.py": b"sub\n"})
    in_git(four, "submodule", "--quiet", "add", sub, "sub")
    write(four, {".gitattributes": b"*.py filter=evil diff=evil text\n* export-subst\n"})
    in_git(four, "add", "--all")
    in_git(four, "commit", "--quiet", "--message=hostile")
    program = tmp_path / "evil"
    program.write_text(f'#!/bin/sh\ntouch "{tmp_path}/ran-$1"\ncat\n')
    program.chmod(0o755)
    hooks = "post-checkout reference-transaction post-index-change pre-receive update post-update post-merge fsmonitor"
    (four / ".git/hooks").mkdir(exist_ok=True)
    for hook in hooks.split():
        (four / ".git/hooks" / hook).write_text(f'#!/bin/sh\ntouch "{tmp_path}/ran-hook-{hook}"\n')
        (four / ".git/hooks" / hook).chmod(0o755)
    for setting in (
        "core.fsmonitor",
        "core.sshCommand",
        "core.gitProxy",
        "core.pager",
        "core.editor",
        "core.alternateRefsCommand",
        "uploadpack.packObjectsHook",
        "filter.evil.smudge",
        "filter.evil.clean",
        "filter.evil.process",
        "diff.evil.textconv",
        "diff.external",
        "credential.helper",
        "gc.recentObjectsHook",
        "gpg.program",
    ):
        in_git(four, "config", setting, f"{program} {setting}")
    for name in tmp_path.glob("ran-*"):  # by making it
        name.unlink()
    return four


@pytest.mark.parametrize("rev", [None, "HEAD~1", "v1"])
def test_nothing_of_a_hostile_repository_runs(hostile, tmp_path, rev):
    for source in (str(hostile), hostile.as_uri()):
        arrived = fetch(source, rev=rev)
        assert arrived.files["distributed.py"].startswith(b"x = ")
        assert "sub/distributed.py" not in arrived.paths
        if rev is None:
            assert arrived.notes == ["submodules, which are not fetched: sub"]
    assert list(tmp_path.glob("ran-*")) == []


def test_hostile_repository_does_run_its_programs_where_git_is_used_as_usual(hostile, tmp_path):
    in_git(hostile, "checkout", "--quiet", "--force", "v1")
    in_git(hostile, "status")
    assert len(list(tmp_path.glob("ran-*"))) >= 3


def test_hooks_of_the_user_do_not_run_either(four, tmp_path, monkeypatch):
    (tmp_path / "hooks").mkdir()
    hook = tmp_path / "hooks/reference-transaction"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    (tmp_path / "config").write_text(
        f"[core]\n\thooksPath = {tmp_path}/hooks\n[init]\n\ttemplateDir = {tmp_path}\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    fetch(four, rev="HEAD~1")
    assert not (tmp_path / "ran").exists()


def test_run_inside_a_hook_is_not_led_to_the_repository_of_the_hook(four, tmp_path, monkeypatch):
    other = repository(tmp_path / "other", {"distributed.py": b"other\n"})
    before = sorted(path.name for path in (other / ".git").rglob("*"))
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git/index"))
    monkeypatch.setenv("GIT_OBJECT_DIRECTORY", str(other / ".git/objects"))
    assert fetch(four).files["distributed.py"] == b"x = 4\r\n"
    assert sorted(path.name for path in (other / ".git").rglob("*")) == before


def test_repository_of_another_owner_comes_with_the_advice_of_git(four, tmp_path, monkeypatch):
    """T13: git says what to do, and it works; the address is right."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a repository away")
    config = tmp_path / "config"
    config.touch()
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    for path in (four, *four.rglob("*")):
        os.chown(path, 1234, 1234)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Problem, match="detected dubious ownership") as caught:
        fetch("four")
    advice = f"git config --global --add safe.directory {four}/.git"
    assert caught.value.hint == f"It belongs to another user. If you trust that one: {advice}"
    subprocess.run(advice.split(), check=True)
    assert fetch("four").files["distributed.py"] == b"x = 4\r\n"


def test_transport_that_runs_a_command_is_refused(tmp_path):
    assert "transport 'ext' not allowed" in refused(f"ext::sh -c touch% {tmp_path}/ran")
    assert "git says" in refused(f"ssh://-oProxyCommand=touch%20{tmp_path}/ran/x")
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def silent():
    """The address of a server that accepts, and then never says a word."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    """Where temporary folders go, empty."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path / "tmp"


def children(of: int) -> list[int]:
    """The processes that this one has started and that are not yet gone."""
    if not Path("/proc/self/stat").exists():
        pytest.skip("there is no /proc")
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int((process / "stat").read_text().rpartition(")")[2].split()[1]) == of:
                found.append(int(process.name))
    return found


@pytest.mark.parametrize("scheme", ["http", "git"])
def test_server_that_does_not_answer_is_an_error_within_the_time_limit(silent, temporary, scheme):
    start = time.monotonic()
    before = children(os.getpid())
    said = refused(f"{scheme}://{silent}/a/b", timeout=0.7)
    assert time.monotonic() - start < 5
    assert said == f"{scheme}://{silent}/a/b: no answer within 0.7 seconds"
    assert list(temporary.iterdir()) == []
    assert children(os.getpid()) == before


@pytest.mark.parametrize("scheme", ["http", "git"])
def test_error_does_not_show_the_password(temporary, scheme):
    said = refused(f"{scheme}://user:secret@127.0.0.1:1/a/b")
    assert f"{scheme}://127.0.0.1:1/a/b: git says: unable to " in said
    assert "secret" not in said
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_that_is_ended_leaves_no_folder_and_no_git(silent, temporary, number):
    program = f"from patcher.vendor import sources; sources.fetch('http://{silent}/a', bool)"
    run = subprocess.Popen(
        [sys.executable, "-c", program], env=environment(TMPDIR=str(temporary)), stderr=-3
    )
    deadline = time.monotonic() + 20
    started = []
    while not started and time.monotonic() < deadline:
        time.sleep(0.02)
        started = [
            child
            for child in children(run.pid)
            if b"fetch" in Path(f"/proc/{child}/cmdline").read_bytes()
        ]
    assert started
    run.send_signal(number)
    assert run.wait(timeout=20) != 0
    assert list(temporary.iterdir()) == []
    assert not Path(f"/proc/{started[0]}").exists()


def test_success_leaves_no_folder_either(four, temporary):
    fetch(four, rev="HEAD~1")
    assert list(temporary.iterdir()) == []


def test_without_git_the_error_says_so(four, monkeypatch):
    monkeypatch.setenv("PATH", "/nosuch")
    assert "git is not installed" in refused(four)
