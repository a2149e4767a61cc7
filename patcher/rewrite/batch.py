"""`patcher rewrite`: from paths to what became of each file, with one process for each core."""

from __future__ import annotations

import functools
import gc
import json
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from patcher.core import unified
from patcher.core.problem import Problem, UsageError
from patcher.core.text import unreadable
from patcher.rewrite import write
from patcher.rewrite.files import STDIN, File, base, find
from patcher.rewrite.results import Result, Results
from patcher.rewrite.rewrite import PATCHES, Options, concerns, rewrite
from patcher.rewrite.sites import State

if TYPE_CHECKING:
    from rich.progress import Progress

FEW = 64  # files that are not worth a second process
MANY = 200  # files that are worth a progress bar
AT_ONCE = 25  # files that a process is handed at a time


class Settings(NamedTuple):
    """What is asked for, the same for every file."""

    patches: Sequence[str]
    options: Options
    write: bool
    roots: Sequence[str]  # folders that were named: a link that leads out of them is not followed
    base: str  # the folder that the names in the diff are relative to


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
    patches = selected(select)
    if jobs is not None and jobs < 1:
        raise UsageError(f"-j {jobs}: expected 1 or more")
    files = find(paths, exclude)
    options = {"local_rank_from_env": {"both_spellings": both_spellings}}
    roots = [os.path.realpath(path) for path in paths if os.path.isdir(path)]
    settings = Settings(patches, options, write, roots, base(files))
    jobs = min(jobs or _cores(), -(-len(files) // AT_ONCE)) if len(files) > FEW else 1
    gc.disable()  # trees hold no cycles, and looking for some in them takes a tenth of the time
    bar = _bar() if progress and len(files) >= MANY and sys.stderr.isatty() else None
    found = _results(files, settings, jobs)
    results = list(found if bar is None else _shown(found, len(files), bar))
    elsewhere = settings.base if settings.base != os.path.realpath(".") else ""
    return Results(write, results, elsewhere)


def selected(texts: Sequence[str]) -> list[str]:
    """The names in `--select a,b --select c`, in the order of the patches; else all patches."""
    names = [name for text in texts for name in text.split(",")]
    for name in names:
        if name not in PATCHES:
            there_are = f"there is no such patch for other scripts; there are: {', '.join(PATCHES)}"
            raise UsageError(f"--select {name}: {there_are}")
    return [name for name in PATCHES if name in names or not texts]


def on_file(file: File, settings: Settings) -> Result:
    """One file, read, rewritten and, if that is asked for, written."""
    patches, options = settings.patches, settings.options
    if file.path == STDIN:
        name, source = "<stdin>", sys.stdin.buffer.read()
        done = rewrite(name, source, patches, options)
        shown = done.after
        if not settings.write:
            shown = unified.diff(source, shown, "a/stdin", "b/stdin")
        problem = done.problem or _wide(name, source, patches)
        return Result(name, True, done.findings, problem, done.after != source, shown)
    name = file.path.replace(os.sep, "/")
    result = Result(name, file.named)
    try:
        source, was = write.read(file.path)
        if not concerns(source, patches):
            return result._replace(problem=_wide(name, source, patches))
        done = rewrite(name, source, patches, options)
        result = result._replace(findings=done.findings, problem=done.problem)
        if done.after == source:
            return result
        write.refuse(file.path, was, () if file.named else settings.roots)
        if settings.write:
            write.replace(file.path, done.after, was)
            return result._replace(changed=True)
        relative = file.real.removeprefix(settings.base).replace(os.sep, "/").lstrip("/")
        diff = unified.diff(source, done.after, f"a/{relative}", f"b/{relative}")
        return result._replace(changed=True, shown=diff)
    except write.NotReplaced as refused:
        left = [finding for finding in result.findings if finding.state is not State.REWRITTEN]
        problem = Problem(f"not rewritten: {refused}", file=name)
        return result._replace(findings=left, problem=problem)
    except OSError as error:
        problem = Problem(f"{error.strerror or error}; the file is as it was", file=name, code=2)
        return result._replace(findings=(), problem=problem)


def _wide(name: str, source: bytes, patches: Sequence[str]) -> Problem | None:
    """What is wrong with a script in UTF-16 or UTF-32, if a patch might concern it.

    Its bytes hold no word that a patch looks for.
    """
    encoding = json.detect_encoding(source)
    if encoding.startswith("utf-8"):
        return None
    if not concerns(source.decode(encoding, "replace").encode(), patches):
        return None
    why = f"{encoding[:6].upper()}, in which Python reads no script; save it as UTF-8"
    return unreadable(name, 0, 0, why)


def _results(files: Sequence[File], settings: Settings, jobs: int) -> Iterator[Result]:
    """In the order of the files, whatever the number of processes."""
    work = functools.partial(on_file, settings=settings)
    if jobs == 1 or any(file.path == STDIN for file in files):  # only this process has the stdin
        yield from map(work, files)
        return
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    # Ctrl-C is for this process to handle: the others finish the files that they are at.
    ignore = (signal.SIGINT, signal.SIG_IGN)
    with ProcessPoolExecutor(jobs, initializer=signal.signal, initargs=ignore) as pool:
        try:
            yield from pool.map(work, files, chunksize=AT_ONCE)
        except BrokenProcessPool:
            why = "a process was killed; files that it had not written are as they were"
            raise Problem(why, code=2) from None
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _bar() -> Progress | None:
    """A bar without a thread of its own, beside which processes could not be forked safely."""
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        return None
    return Progress(console=Console(stderr=True), transient=True, auto_refresh=False)


def _shown(results: Iterable[Result], total: int, bar: Progress) -> Iterator[Result]:
    """The same results, with a bar that moves as they come."""
    with bar:
        task = bar.add_task("rewrite", total=total)
        for number, result in enumerate(results, 1):
            yield result
            if number % AT_ONCE == 0 or number == total:
                bar.update(task, completed=number, refresh=True)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
