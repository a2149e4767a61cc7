"""`patcher rewrite`: from paths to what became of each file, one process for each core."""

from __future__ import annotations

import functools
import gc
import json
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from patcher.core import unified
from patcher.core.problem import Problem, UsageError
from patcher.core.text import unreadable
from patcher.rewrite import write
from patcher.rewrite.core import PATCHES, concerns, rewrite
from patcher.rewrite.files import STDIN, File, base, find
from patcher.rewrite.report import Result, Results
from patcher.rewrite.sites import State

FEW = 64  # files that are not worth a second process
MANY = 200  # files that are worth a progress bar
AT_ONCE = 25  # files that a process is handed at a time


class Settings(NamedTuple):
    """What is asked for, the same for every file."""

    patches: Sequence[str]
    write: bool = False
    both_spellings: bool = False
    roots: Sequence[str] = ()
    """Folders that were named: a link that leads out of them is not followed."""
    base: str = ""
    """The folder that the names in the diff are relative to."""

    @property
    def options(self) -> dict[str, dict]:
        return {"local_rank_from_env": {"both_spellings": True}} if self.both_spellings else {}


def run(
    paths: Sequence[str],
    select: Sequence[str] = (),
    exclude: Sequence[str] = (),
    write: bool = False,
    both_spellings: bool = False,
    jobs: int | None = None,
    progress: bool = False,
) -> Results:
    """Rewrite what the paths lead to, with a bar on a terminal if there is `progress` to show.

    Raises UsageError before anything is read.
    """
    settings = Settings(selected(select), write, both_spellings, _roots(paths))
    if jobs is not None and jobs < 1:
        raise UsageError(f"-j {jobs}: expected 1 or more")
    files = find(paths, exclude)
    settings = settings._replace(base=base(files))
    jobs = min(jobs or _cores(), -(-len(files) // AT_ONCE)) if len(files) > FEW else 1
    gc.disable()  # trees hold no cycles, and looking for some in them takes a tenth of the time
    results = _shown(_results(files, settings, jobs), len(files), progress)
    elsewhere = settings.base if settings.base != os.path.realpath(".") else ""
    return Results(write, tuple(results), elsewhere)


def selected(texts: Sequence[str]) -> list[str]:
    """The names in `--select a,b --select c`, in the order of the patches; all of them where nothing is selected."""
    names = [name for text in texts for name in text.split(",")]
    for name in names:
        if name not in PATCHES:
            raise UsageError(
                f"--select {name}: there is no such patch for other scripts; there are: {', '.join(PATCHES)}"
            )
    return [name for name in PATCHES if name in names or not texts]


def on_file(file: File, settings: Settings) -> Result:
    """One file, read, rewritten and, if that is asked for, written."""
    if file.path == STDIN:
        source = sys.stdin.buffer.read()
        done = rewrite("<stdin>", source, settings.patches, settings.options)
        shown = (
            done.after if settings.write else unified.diff(source, done.after, "a/stdin", "b/stdin")
        )
        problem = done.problem or _wide("<stdin>", source, settings.patches)
        return Result("<stdin>", True, done.findings, problem, done.after != source, shown)
    name = file.path.replace(os.sep, "/")
    try:
        source, was = write.read(file.path)
        if not concerns(source, settings.patches):
            return Result(name, file.named, (), _wide(name, source, settings.patches))
        done = rewrite(name, source, settings.patches, settings.options)
        if done.after == source:
            return Result(name, file.named, done.findings, done.problem)
        write.refuse(file.path, was, () if file.named else settings.roots)
        if settings.write:
            write.replace(file.path, done.after, was)
            return Result(name, file.named, done.findings, None, True)
        relative = file.real.removeprefix(settings.base).replace(os.sep, "/").lstrip("/")
        diff = unified.diff(source, done.after, f"a/{relative}", f"b/{relative}")
        return Result(name, file.named, done.findings, None, True, diff)
    except write.Refused as refused:
        left = tuple(finding for finding in done.findings if finding.state is not State.REWRITTEN)
        problem = Problem(f"not rewritten: {refused}", file=name)
        return Result(name, file.named, left, problem)
    except OSError as error:
        problem = Problem(f"{error.strerror or error}; the file is as it was", file=name, code=2)
        return Result(name, file.named, (), problem)


def _wide(name: str, source: bytes, patches: Sequence[str]) -> Problem | None:
    """What is wrong with a script in UTF-16 or UTF-32 that a patch might concern: its bytes hold no word of it."""
    encoding = json.detect_encoding(source)
    if encoding.startswith("utf-8") or not concerns(
        source.decode(encoding, "replace").encode(), patches
    ):
        return None
    return unreadable(
        name, 0, 0, f"{encoding[:6].upper()}, in which Python reads no script; save it as UTF-8"
    )


def _results(files: Sequence[File], settings: Settings, jobs: int) -> Iterator[Result]:
    """In the order of the files, whatever the number of processes."""
    work = functools.partial(on_file, settings=settings)
    if jobs == 1 or any(file.path == STDIN for file in files):  # only this process has the stdin
        yield from map(work, files)
        return
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    # Ctrl-C is for this process to handle: the others finish the files that they are at.
    with ProcessPoolExecutor(
        jobs, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)
    ) as pool:
        try:
            yield from pool.map(work, files, chunksize=AT_ONCE)
        except BrokenProcessPool:
            raise Problem(
                "a process was killed; files that it had not written are as they were", code=2
            ) from None
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _shown(results: Iterable[Result], total: int, progress: bool) -> Iterator[Result]:
    """The same results, with a bar that moves as they come: on a terminal, where there are many."""
    bar = _bar() if progress and total >= MANY and sys.stderr.isatty() else None
    if bar is None:
        yield from results
        return
    with bar:
        task = bar.add_task("rewrite", total=total)
        for number, result in enumerate(results, 1):
            yield result
            if number % AT_ONCE == 0 or number == total:
                bar.update(task, completed=number, refresh=True)


def _bar():
    """A bar without a thread of its own, beside which processes could not be forked safely."""
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        return None
    return Progress(console=Console(stderr=True), transient=True, auto_refresh=False)


def _roots(paths: Sequence[str]) -> tuple[str, ...]:
    return tuple(os.path.realpath(path) for path in paths if os.path.isdir(path))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
