"""A git repository as a source: fetched without its history into a bare folder that is gone again afterwards.

Nothing is checked out, so no hook, filter or submodule of the repository gets to run, and the bytes
are those of the commit, whatever this machine does to line endings.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from patcher.core.problem import Problem, UsageError
from patcher.vendor.arrived import ENTRIES, SCRIPT, Arrived, Wanted

QUIET = {  # it asks nobody anything; nor can it, without a terminal
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "true",
    "SSH_ASKPASS": "true",
    "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_LFS_SKIP_SMUDGE": "1",
    "LC_ALL": "C",
}
OPTIONS = (
    "core.hooksPath=/dev/null",
    "credential.helper=",
    "credential.interactive=false",
    "gc.auto=0",
)


def is_repository(folder: Path) -> bool:
    """Whether a folder is a work tree or a bare repository; git itself is not asked, as it would read its settings."""
    bare = (
        (folder / "HEAD").is_file() and (folder / "objects").is_dir() and (folder / "refs").is_dir()
    )
    return (folder / ".git").exists() or bare


def commit_of(source: str, wanted: Wanted, rev: str | None, timeout: float) -> Arrived:
    """The files of a commit: that of `rev` (a branch, a tag, a commit, also a shortened one), else of HEAD."""
    if rev is not None and (not rev or rev.startswith("-") or re.search(r"[\s:]", rev)):
        raise UsageError(f"--rev {rev}: expected a branch, a tag or a commit")
    remote = not Path(source).exists() and is_url(source)
    address = source if remote else str(Path(source).resolve())
    with (
        _Signals() as signals,
        tempfile.TemporaryDirectory(prefix="patcher-", ignore_cleanup_errors=True) as folder,
    ):
        git = _Git(Path(folder), shown(source), address, timeout, signals)
        git("init", "--quiet", "--bare", "--template=", ".")
        commit = _commit(git, address, rev)
        date = (
            git("show", "--no-patch", "--no-show-signature", "--format=%cs", commit)
            .decode()
            .strip()
        )
        files, paths, notes = _content(git, commit, wanted)
        if not remote:
            notes += _differing(Path(source), files, rev)
    repository = (
        shown(source) if remote and not source.startswith("file:") else ""
    )  # no path of this machine
    return Arrived("git", shown(source), files, paths, repository, commit, date, notes)


def is_url(source: str) -> bool:
    """Whether git would take this for an address, `scheme://...` or `host:path`; a drive letter is no host."""
    return "://" in source or bool(re.match(r"([\w.-]+@)?[\w.-]{2,}:(?!\\)", source))


def shown(source: str) -> str:
    """An address without the user and password that may stand in it."""
    return re.sub(r"^(\w[\w+.-]*://)[^/@]*@", r"\1", source)


def _commit(git: _Git, address: str, rev: str | None) -> str:
    fetch = ["fetch", "--quiet", "--no-tags", "--no-recurse-submodules", "--no-write-commit-graph"]
    if rev is None or not re.fullmatch(
        r"[0-9a-f]{4,39}", rev
    ):  # a shortened name means nothing to the other side
        try:
            git(*fetch, "--depth=1", "--", address, rev or "HEAD")
            return git("rev-parse", "--verify", "--quiet", "FETCH_HEAD^{commit}").decode().strip()
        except Problem as problem:
            if rev is None or getattr(problem, "final", False):
                raise
    heads = ["+HEAD:refs/patcher/HEAD", "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"]
    git(*fetch, "--update-head-ok", "--", address, *heads)
    git("update-ref", "--no-deref", "HEAD", "refs/patcher/HEAD")
    try:
        return (
            git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{rev}^{{commit}}")
            .decode()
            .strip()
        )
    except Problem as problem:
        if getattr(problem, "final", False):
            raise
        raise UsageError(f"--rev {rev}: {git.source} has no such branch, tag or commit") from None


def _content(
    git: _Git, commit: str, wanted: Wanted
) -> tuple[dict[str, bytes], list[str], list[str]]:
    files, paths, modules = {}, [], []
    entries = git("ls-tree", "-r", "-z", "--full-tree", "--long", commit).split(b"\0")[:-1]
    if len(entries) > ENTRIES:
        raise Problem(f"more than {ENTRIES} files", file=git.source, code=2)
    for entry in entries:
        what, _, path = entry.partition(b"\t")
        mode, kind, name, size = what.split()
        inside = path.decode("utf-8", "replace")
        if kind == b"commit":
            modules.append(inside)
        elif mode == b"120000":
            if wanted(inside):
                raise Problem(
                    f"{inside} is a link, and links are not followed", file=git.source, code=2
                )
        else:
            paths.append(inside)
            if wanted(inside):
                if int(size) > SCRIPT:
                    raise Problem(
                        f"{inside}: larger than {SCRIPT >> 20} MiB", file=git.source, code=2
                    )
                files[inside] = git("cat-file", "blob", name.decode())
    return (
        files,
        paths,
        [f"submodules, which are not fetched: {', '.join(modules)}"] if modules else [],
    )


def _differing(folder: Path, files: dict[str, bytes], rev: str | None) -> list[str]:
    """What a user who has edited a work tree but committed nothing has to know."""
    named = []
    for name, content in files.items() if rev is None else ():
        with contextlib.suppress(OSError):
            if (folder / name).read_bytes().replace(b"\r\n", b"\n") != content.replace(
                b"\r\n", b"\n"
            ):
                named.append(name)
    return (
        [f"the work tree differs, and the last commit is what counts: {', '.join(named)}"]
        if named
        else []
    )


class _Git:
    """Runs git in one folder, all runs together within a time limit in seconds."""

    def __init__(self, folder: Path, source: str, address: str, timeout: float, signals: _Signals):
        self.signals = signals
        self.folder, self.source, self.address, self.timeout = folder, source, address, timeout
        self.until = time.monotonic() + timeout
        ours = (
            "GIT_SSL",
            "GIT_SSH",
            "GIT_HTTP",
            "GIT_PROXY",
            "GIT_CONFIG",
        )  # how to get there, not what is meant
        inherited = {
            name: v
            for name, v in os.environ.items()
            if not name.startswith("GIT_") or name.startswith(ours)
        }
        self.environment = {**inherited, **QUIET, "GIT_DIR": str(folder)}

    def __call__(self, *arguments: str) -> bytes:
        options = [part for option in OPTIONS for part in ("-c", option)]
        self.signals.held = True
        try:
            process = subprocess.Popen(
                ["git", *options, *arguments],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # git starts helpers, which have to end with it
            )
        except OSError:
            raise self._failed(
                "git is not installed", "Install git, or give a folder or an archive."
            ) from None
        finally:
            self.signals.held = False
        try:
            self.signals.end()
            out, err = process.communicate(timeout=max(0.0, self.until - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise self._failed(
                f"no answer within {self.timeout:g} seconds",
                "Try again later, or with a larger --timeout.",
            ) from None
        finally:
            if process.poll() is None:
                _kill(process)
        if process.returncode:
            advice = _advice(err)
            raise self._failed(
                self._reason(err), advice or "Is this the right address?", final=bool(advice)
            )
        return out

    def _reason(self, err: bytes) -> str:
        text = err.decode("utf-8", "replace").replace(self.address, self.source)
        user = re.match(r"\w[\w+.-]*://([^/@]*@)", self.address)
        text = text.replace(user[1], "") if user else text
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        said = next(
            (line for line in lines if line.startswith("fatal:")),
            lines[-1] if lines else "git failed",
        )
        return f"git says: {said.removeprefix('fatal: ')}"

    def _failed(self, why: str, hint: str, final: bool = True) -> Problem:
        problem = Problem(why, file=self.source, hint=hint, code=2)
        problem.final = final  # another command would fail in the same way
        return problem


def _advice(err: bytes) -> str:
    """What git itself says to do with a repository that belongs to somebody else."""
    found = re.search(
        r"^\s*(git config .*safe\.directory .*)$", err.decode("utf-8", "replace"), re.MULTILINE
    )
    return f"It belongs to another user. If you trust that one: {found[1]}" if found else ""


def _kill(process: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.communicate()


class _Signals:
    """Lets SIGTERM, by which a CI job is ended, and Ctrl-C end the run with an exception: git too, the folder removed.

    Not between the start of a process and the moment at which we know it, or it would outlive us.
    """

    def __init__(self):
        self.held, self.came = False, None

    def __enter__(self) -> _Signals:
        ours = {
            signal.SIGTERM: signal.SIG_DFL,
            signal.SIGINT: signal.default_int_handler,
        }  # else it is not for us
        main = threading.current_thread() is threading.main_thread()
        self.before = {n: how for n, how in ours.items() if main and signal.getsignal(n) is how}
        for number in self.before:
            signal.signal(number, self._handle)
        return self

    def __exit__(self, *_) -> None:
        for number, how in self.before.items():
            signal.signal(number, how)

    def _handle(self, number: int, frame) -> None:
        self.came = number
        if not self.held:
            self.end()

    def end(self) -> None:
        """Raise what one that has come means."""
        if self.came is not None:
            raise KeyboardInterrupt if self.came == signal.SIGINT else SystemExit(128 + self.came)
