"""A git repository as a source: fetched without its history into a bare folder, which is removed.

Nothing is checked out, so no hook, filter or submodule of the repository gets to run, and the bytes
are those of the commit, whatever this machine does to line endings.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO

from patcher.core.problem import Problem, UsageError
from patcher.vendor.arrived import Arrived, Arriving, Wanted

QUIET = {  # it asks nobody anything; nor can it, without a terminal
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "true",
    "SSH_ASKPASS": "true",
    "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_LFS_SKIP_SMUDGE": "1",
    "LC_ALL": "C",
}
# What the user may say: how to get there, not what is meant.
INHERITED = ("GIT_SSL", "GIT_SSH", "GIT_HTTP", "GIT_PROXY", "GIT_CONFIG")
OPTIONS = ["-c", "core.hooksPath=/dev/null", "-c", "gc.auto=0"]
OPTIONS += ["-c", "credential.helper=", "-c", "credential.interactive=false"]
FETCH = ["fetch", "--quiet", "--no-tags", "--no-recurse-submodules", "--no-write-commit-graph"]
PARSE = ["rev-parse", "--verify", "--quiet", "--end-of-options"]


def is_repository(folder: Path) -> bool:
    """Whether a folder is a work tree or a bare repository; git is not asked: it reads settings."""
    is_bare = (folder / "HEAD").is_file()
    is_bare = is_bare and all((folder / name).is_dir() for name in ("objects", "refs"))
    return is_bare or (folder / ".git").exists()


def is_url(source: str) -> bool:
    """Whether git takes this for an address: `scheme://...` or `host:path`, not a drive letter."""
    return "://" in source or bool(re.match(r"([\w.-]+@)?[\w.-]{2,}:(?!\\)", source))


def shown(source: str) -> str:
    """An address without the user and password that may stand in it."""
    return re.sub(r"^(\w[\w+.-]*://)[^/@]*@", r"\1", source)


def commit_of(source: str, wanted: Wanted, rev: str | None, timeout: float) -> Arrived:
    """The files of a commit: that of `rev` (a branch, a tag, a commit, shortened or not) or HEAD.

    Raises Problem, also if git takes more than `timeout` seconds.
    """
    if rev is not None and (not rev or rev.startswith("-") or re.search(r"[\s:]", rev)):
        raise UsageError(f"--rev {rev}: expected a branch, a tag or a commit")
    is_remote = not Path(source).exists() and is_url(source)
    git = _Git(shown(source), source if is_remote else str(Path(source).resolve()), timeout)
    with (
        git.ended_by_signals(),
        tempfile.TemporaryDirectory(prefix="patcher-", ignore_cleanup_errors=True) as git.folder,
    ):
        git("init", "--quiet", "--bare", "--template=", ".")
        commit = _commit(git, rev)
        date = git.says("show", "--no-patch", "--no-show-signature", "--format=%cs", commit)
        arriving = Arriving(git.source, wanted)
        notes = _collect(git, commit, arriving)
    if not is_remote and rev is None:
        notes += _differing(Path(source), arriving.files)
    is_public = is_remote and not source.startswith("file:")  # no path of this machine
    repository = git.source if is_public else ""
    files, paths = arriving.files, sorted(arriving.paths)
    return Arrived("git", git.source, files, paths, repository, commit, date, notes)


def _commit(git: _Git, rev: str | None) -> str:
    # A shortened name means nothing to the other side.
    if rev is None or not re.fullmatch(r"[0-9a-f]{4,39}", rev):
        try:
            git(*FETCH, "--depth=1", "--", git.address, rev or "HEAD")
            return git.says(*PARSE, "FETCH_HEAD^{commit}")
        except _Refused:
            if rev is None:
                raise
    heads = ["+HEAD:refs/patcher/HEAD", "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"]
    git(*FETCH, "--update-head-ok", "--", git.address, *heads)
    git("update-ref", "--no-deref", "HEAD", "refs/patcher/HEAD")
    try:
        return git.says(*PARSE, f"{rev}^{{commit}}")
    except _Refused:
        raise UsageError(f"--rev {rev}: {git.source} has no such branch, tag or commit") from None


def _collect(git: _Git, commit: str, arriving: Arriving) -> list[str]:
    """Read what is wanted of a commit, and return notes for the user."""
    modules = []
    entries = git("ls-tree", "-r", "-z", "--full-tree", "--long", commit).split(b"\0")[:-1]
    arriving.count(len(entries))
    for entry in entries:
        what, _, path = entry.partition(b"\t")
        mode, kind, blob, size = what.decode().split()
        name = path.decode("utf-8", "replace")
        if kind == "commit":
            modules.append(name)
        elif mode == "120000":
            arriving.pass_link(name)
        else:
            arriving.add(name, partial(git.blob, blob), int(size))
    return [f"submodules, which are not fetched: {', '.join(modules)}"] if modules else []


def _differing(folder: Path, files: Mapping[str, bytes]) -> list[str]:
    """What a user who has edited a work tree but committed nothing has to know."""
    named = []
    for name, content in files.items():
        with contextlib.suppress(OSError):
            here, committed = (
                text.replace(b"\r\n", b"\n") for text in ((folder / name).read_bytes(), content)
            )
            named += [name] if here != committed else []
    what = f"the work tree differs, and the last commit is what counts: {', '.join(named)}"
    return [what] if named else []


class _Refused(Problem):
    """What git says to one command; another one may work."""


class _Git:
    """Runs git in one folder, all runs together within a time limit in seconds."""

    folder: str
    ended_by: int | None = None  # a signal
    process: subprocess.Popen[bytes] | None = None

    def __init__(self, source: str, address: str, timeout: float) -> None:
        self.source, self.address, self.timeout = source, address, timeout
        self.until = time.monotonic() + timeout
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(INHERITED) or not name.startswith("GIT_")
        }
        self.environment = {**inherited, **QUIET}

    def __call__(self, *arguments: str) -> bytes:
        try:
            self.process = subprocess.Popen(
                ["git", *OPTIONS, *arguments],
                cwd=self.folder,
                env={**self.environment, "GIT_DIR": self.folder},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # git starts helpers, which have to end with it
            )
        except OSError:
            hint = "Install git, or give a folder or an archive."
            raise self._problem("git is not installed", hint) from None
        try:
            if self.ended_by:  # before the process was known
                self._kill()
            out, err = self.process.communicate(timeout=max(0.0, self.until - time.monotonic()))
        except subprocess.TimeoutExpired:
            why = f"no answer within {self.timeout:g} seconds"
            hint = "Try again later, or with a larger --timeout."
            raise self._problem(why, hint) from None
        finally:
            if self.process.poll() is None:
                self._kill()
                self.process.communicate()
        if self.ended_by:
            raise KeyboardInterrupt
        if self.process.returncode:
            raise self._refusal(err.decode("utf-8", "replace"))
        return out

    def says(self, *arguments: str) -> str:
        return self(*arguments).decode().strip()

    def blob(self, name: str) -> IO[bytes]:
        return io.BytesIO(self("cat-file", "blob", name))

    @contextlib.contextmanager
    def ended_by_signals(self) -> Iterator[None]:
        """Let SIGTERM, by which a CI job is ended, and Ctrl-C end git first, and then this run."""

        def end(number: int, frame: object) -> None:
            self.ended_by = number
            self._kill()

        # Not if somebody else handles them.
        usual = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
        is_main = threading.current_thread() is threading.main_thread()
        found = {number: signal.getsignal(number) for number in usual}
        before = {n: how for n, how in found.items() if is_main and how is usual[n]}
        try:
            for number in before:
                signal.signal(number, end)
            yield
        finally:
            for number, how in before.items():
                signal.signal(number, how)
            if self.ended_by:
                signal.raise_signal(self.ended_by)

    def _kill(self) -> None:
        """End git and its helpers, if it still runs."""
        if self.process and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if hasattr(os, "killpg"):
                    os.killpg(self.process.pid, signal.SIGKILL)
                else:
                    self.process.kill()

    def _refusal(self, text: str) -> Problem:
        # Git itself says what to do with a repository of somebody else.
        advice = re.search(r"^\s*(git config .*safe\.directory .*)$", text, re.MULTILINE)
        text = text.replace(self.address, self.source)
        if user := re.match(r"\w[\w+.-]*://([^/@]*@)", self.address):
            text = text.replace(user[1], "")
        lines = [line.strip() for line in text.splitlines() if line.strip()] or ["git failed"]
        said = next((line for line in lines if line.startswith("fatal:")), lines[-1])
        why = f"git says: {said.removeprefix('fatal: ')}"
        if advice:
            hint = f"It belongs to another user. If you trust that one: {advice[1]}"
            return self._problem(why, hint)
        return self._problem(why, "Is this the right address?", _Refused)

    def _problem(self, why: str, hint: str, kind: type[Problem] = Problem) -> Problem:
        return kind(why, file=self.source, hint=hint, code=2)
