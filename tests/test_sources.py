"""Folders, archives and git repositories, read into memory, and what hostile ones do not get."""

import io
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tarfile
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
    """Set limits of what may arrive."""
    for name, value in limits.items():
        monkeypatch.setattr(archive if name == "UNPACKED" else arrived, name, value)


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


def test_address_is_taken_for_one_and_a_path_is_not_even_with_a_drive_letter():
    addresses = "https://example.org/a/b file:///a/b git@example.org:a/b.git host:a/b ext::sh"
    assert all(map(git.is_url, addresses.split()))
    paths = ["a/b", "/a/b", ".", "C:\\a b\\s.py", "C:/a b", "D:new scripts", "a.zip", "ab:\\c"]
    assert not any(map(git.is_url, paths))


def test_what_is_not_there_or_is_no_source_is_bad_usage(tmp_path):
    (tmp_path / "a.txt").write_text("no archive")
    assert "there is no such folder, repository or archive" in refused(tmp_path / "nosuch")
    assert "not an archive that can be read" in refused(tmp_path / "a.txt")
    assert "download it first" in refused("https://example.org/archive/main.tar.gz")


def test_rev_is_refused_if_there_are_none(tmp_path):
    for source in (write(tmp_path / "folder"), zipped(tmp_path / "a.zip")):
        assert "is not a git repository" in refused(source, rev="main")


# Folders


def test_folder_is_read_without_hidden_folders(tmp_path):
    hidden = {f"{folder}/distributed.py": b"no" for folder in (".venv", "__pycache__")}
    arrived = fetch(write(tmp_path, {**FILES, **hidden}))
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


COMPRESSED = ("a.tar", "a.tar.gz", "a.tgz.gz", "a.tar.bz2", "a.tar.xz")
MAKE = {"a.zip": zipped, **dict.fromkeys(COMPRESSED, tarred)}


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


OUTSIDE = r"""../distributed.py a/../../distributed.py /distributed.py ..\distributed.py
              C:\distributed.py C:distributed.py ../harmless.txt"""


@pytest.mark.parametrize("name", OUTSIDE.split())
def test_archive_with_a_path_that_leads_out_is_refused(pack, name):
    assert "which would lie outside" in refused(pack({**FILES, name: b"x"}))


@pytest.mark.parametrize("target", ["/etc/passwd", "../up", "more/../../up", "..\\up", "C:\\up"])
def test_archive_with_a_link_that_leads_out_is_refused(pack, target):
    assert "leads outside" in refused(pack(links={"link": target}))


def test_hard_link_that_leads_out_is_refused(tmp_path):
    archive = tarred(tmp_path / "a.tar", links={"more/link": "../up"}, kind=tarfile.LNKTYPE)
    assert "leads outside" in refused(archive)


def test_link_within_an_archive_is_ignored_unless_it_is_one_of_ours(pack):
    links = {"link": "more/distributed.py", "more/back": "../LICENSE"}
    assert fetch(pack(links=links)).files == READ
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
    limit(monkeypatch, SCRIPT=1 << 20, UNPACKED=8 << 20)
    bomb = {"distributed.py": bytes(16 << 20)}
    assert "larger than 1 MiB" in (said := refused(pack(bomb))) or "more than 8 MiB" in said


def test_bomb_beside_what_is_wanted_is_refused_too(tmp_path, monkeypatch):
    limit(monkeypatch, UNPACKED=8 << 20)
    bomb = tarred(tmp_path / "a.tar.gz", {"data": bytes(16 << 20), **FILES})
    assert "more than 8 MiB when unpacked" in refused(bomb)


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
    content, chance, codes = archive.read_bytes(), random.Random(0), set()
    for _ in range(100):
        damaged = bytearray(content)
        for _ in range(chance.choice([1, 1, 3])):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        archive.write_bytes(damaged)
        try:
            fetch(archive)
        except Problem as problem:
            codes.add(problem.code)
    assert codes == {2}


# Git

USER = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always"]
DATE = {"GIT_COMMITTER_DATE": "2021-08-19T12:00:00Z"}
QUIET = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


def in_git(folder: Path, *arguments) -> str:
    command, env = ["git", *USER, *map(str, arguments)], environment(**QUIET, **DATE)
    done = subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def repository(folder: Path, *commits) -> Path:
    """A repository with a commit for each of these sets of files, and the tags v1, v2 and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    in_git(folder, "init", "--quiet", "--initial-branch=main", "--template=")
    for number, files in enumerate(commits, 1):
        commit(write(folder, files))
        in_git(folder, "tag", "--annotate", f"v{number}", "--message", f"{number}")
    return folder


def commit(folder: Path) -> None:
    """Commit all that is there."""
    in_git(folder, "add", "--all")
    in_git(folder, "commit", "--quiet", "--message=news")


@pytest.fixture(scope="module")
def four_commits(tmp_path_factory) -> Path:
    commits = ({**FILES, "distributed.py": b"x = %d\r\n" % n} for n in range(1, 5))
    return repository(tmp_path_factory.mktemp("four"), *commits)


@pytest.fixture
def four(four_commits, tmp_path) -> Path:
    return Path(shutil.copytree(four_commits, tmp_path / "four"))


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
    rev = {"full": commit, "short": commit[:7]}.get(name, name)
    arrived = fetch(four.as_uri() if url else four, rev=rev)
    assert (arrived.commit, arrived.files["distributed.py"]) == (commit, b"x = 2\r\n")


def test_revision_that_is_not_there_is_bad_usage(four):
    for rev in ("nosuch", "abcdef1", "0" * 40, "v1:LICENSE", "--upload-pack=true", "-h", "", "a b"):
        with pytest.raises(UsageError, match="--rev"):
            fetch(four, rev=rev)


def test_only_the_commit_itself_is_fetched(four, monkeypatch):
    seen, run = [], git._Git.__call__

    def spy(self, *arguments):
        seen.append(arguments[0])
        if arguments[0] == "ls-tree" and Path(self.folder, "shallow").exists():
            seen.append(run(self, "rev-list", "--count", arguments[-1]))
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
    commit(four)
    assert fetch(four).files["LICENSE"] == b"a\nb\n"
    assert fetch(four, rev="v4").files["distributed.py"] == b"x = 4\r\n"


def test_uncommitted_edits_are_named_and_do_not_count(four):
    write(four, {"distributed.py": b"edited\n"})
    arrived = fetch(four)
    assert arrived.files["distributed.py"] == b"x = 4\r\n"
    note = "the work tree differs, and the last commit is what counts: distributed.py"
    assert arrived.notes == [note]
    assert fetch(four, rev="v1").notes == []


def test_repository_without_a_commit_is_an_error_and_no_crash(tmp_path):
    assert "git says: couldn't find remote ref HEAD" in refused(repository(tmp_path / "empty"))


def test_script_that_is_a_link_or_too_large_in_a_repository_is_refused(four, monkeypatch):
    with monkeypatch.context() as patch:
        limit(patch, SCRIPT=6)
        assert "distributed.py: larger than" in refused(four)
    (four / "distributed.py").unlink()
    (four / "distributed.py").symlink_to("/etc/passwd")
    commit(four)
    assert "distributed.py is a link" in refused(four)


HOOKS = """post-checkout reference-transaction post-index-change pre-receive update post-update
           post-merge fsmonitor"""
SETTINGS = """core.fsmonitor core.sshCommand core.gitProxy core.pager core.editor
              core.alternateRefsCommand uploadpack.packObjectsHook filter.evil.smudge
              filter.evil.clean filter.evil.process diff.evil.textconv diff.external
              credential.helper gc.recentObjectsHook gpg.program"""


@pytest.fixture
def hostile(four, tmp_path) -> Path:
    """A repository that runs a program in every way that it can: each leaves a file `ran-...`."""
    sub = repository(tmp_path / "sub", {"distributed.py": b"sub\n"})
    in_git(four, "submodule", "--quiet", "add", sub, "sub")
    write(four, {".gitattributes": b"*.py filter=evil diff=evil text\n* export-subst\n"})
    commit(four)
    program = tmp_path / "evil"
    program.write_text(f'#!/bin/sh\ntouch "{tmp_path}/ran-$1"\ncat\n')
    program.chmod(0o755)
    (four / ".git/hooks").mkdir(exist_ok=True)
    for hook in HOOKS.split():
        (four / ".git/hooks" / hook).write_text(f'#!/bin/sh\ntouch "{tmp_path}/ran-hook-{hook}"\n')
        (four / ".git/hooks" / hook).chmod(0o755)
    with (four / ".git/config").open("a") as config:
        for setting in SETTINGS.split():
            section, *name, key = setting.split(".")
            head = f'{section} "{name[0]}"' if name else section
            config.write(f"[{head}]\n\t{key} = {program} {setting}\n")
    return four


def test_nothing_of_a_hostile_repository_runs(hostile, tmp_path):
    for rev in (None, "HEAD~1", "v1"):
        for source in (str(hostile), hostile.as_uri()):
            arrived = fetch(source, rev=rev)
            assert arrived.files["distributed.py"].startswith(b"x = ")
            assert "sub/distributed.py" not in arrived.paths
            submodules = ["submodules, which are not fetched: sub"]
            assert rev is not None or arrived.notes == submodules
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
    settings = f"[core]\n\thooksPath = {tmp_path}/hooks\n[init]\n\ttemplateDir = {tmp_path}\n"
    (tmp_path / "config").write_text(settings)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    fetch(four, rev="HEAD~1")
    assert not (tmp_path / "ran").exists()


def test_run_inside_a_hook_is_not_led_to_the_repository_of_the_hook(four, tmp_path, monkeypatch):
    other = repository(tmp_path / "other", {"distributed.py": b"other\n"})
    before = sorted(path.name for path in (other / ".git").rglob("*"))
    for name, path in (("DIR", ""), ("INDEX_FILE", "index"), ("OBJECT_DIRECTORY", "objects")):
        monkeypatch.setenv(f"GIT_{name}", str(other / ".git" / path))
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
    """A server that accepts, and then never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def address(server: socket.socket) -> str:
    return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    """Where temporary folders go, empty."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path / "tmp"


def children(of: int) -> list[str]:
    """The processes that this one has started and that are not yet gone."""
    listed = Path(f"/proc/{of}/task/{of}/children")
    if not listed.exists():
        pytest.skip("there is no /proc")
    return listed.read_text().split()


@pytest.mark.parametrize("scheme", ["http", "git"])
def test_server_that_does_not_answer_is_an_error_at_the_time_limit(silent, temporary, scheme):
    before, source = children(os.getpid()), f"{scheme}://{address(silent)}/a/b"
    assert refused(source, timeout=0.3) == f"{source}: no answer within 0.3 seconds"
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
    program = "import sys; from patcher.vendor import sources; sources.fetch(sys.argv[1], bool)"
    command = [sys.executable, "-c", program, f"http://{address(silent)}/a"]
    env = environment(TMPDIR=str(temporary))
    with subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL) as run:
        connection, _ = silent.accept()  # git's helper has started
        started = children(run.pid)
        assert started
        run.send_signal(number)
    assert run.returncode != 0
    assert list(temporary.iterdir()) == []
    assert not any(Path("/proc", child).exists() for child in started)
    with connection:  # and the helper is gone, too: it has hung up
        while connection.recv(4096):
            pass


def test_success_leaves_no_folder_either(four, temporary):
    fetch(four, rev="HEAD~1")
    assert list(temporary.iterdir()) == []


def test_without_git_the_error_says_so(four, monkeypatch):
    monkeypatch.setenv("PATH", "/nosuch")
    assert "git is not installed" in refused(four)
