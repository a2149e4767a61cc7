"""The command line: arguments in, findings and an exit status out.  The only module that prints."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from operator import methodcaller
from pathlib import Path

import patcher
from patcher.build import manifest
from patcher.build.project import Project, Request
from patcher.core.problem import Problem, Problems

TYPE_CHECKING = False  # `typing` costs a run that has nothing to do more than its own work
if TYPE_CHECKING:
    from typing import TextIO

    from patcher.report import Report

EXAMPLES = """\
examples:
  patcher apply                          write build/ with the default series
  patcher apply --series guide           the vendor guide's edits and nothing else
  patcher apply --set configurable_gpus.gpus=0-7
                                         write this GPU list into the script
  patcher check --format github          in CI: 1 if upstream, a patch or build/ has changed
  patcher diff reshape_topk              what one patch does
  patcher list                           every patch, its series, state and sites
  patcher export debian/patches          for git apply, patch -p1 or quilt
  patcher vendor https://github.com/tczhangzhi/pytorch-distributed
                                         what every patch says to the newest upstream
  patcher report                         one page: patches, diffs; and curves of runs, if named
  patcher verify --quick                 do the scripts train on this machine?
  patcher rewrite --write my_scripts     mend the same faults in other scripts
  patcher new print_freq --file distributed.py --function train
                                         begin a patch: its file, its test, its line in the series

exit status: 0 fine, 1 a human has to look, 2 bad usage, unreadable input or a crash
"""

Add = Callable[[argparse.ArgumentParser], object]  # adds an option to a parser


def value(name: str, metavar: str, help: str, *short: str, **how: object) -> Add:
    return methodcaller("add_argument", *short, name, metavar=metavar, help=help, **how)


def values(name: str, metavar: str, help: str, **how: object) -> Add:
    return value(name, metavar, help, **{"action": "append", "default": [], **how})


def switch(*names: str, help: str) -> Add:
    return methodcaller("add_argument", *names, action="store_true", help=help)


def form(*more: str) -> Add:
    how = {"choices": ("text", "json", "github", *more), "default": "text"}
    return methodcaller("add_argument", "--format", help="of findings (default: text)", **how)


def either(*options: Add) -> Add:
    def add(parser: argparse.ArgumentParser) -> None:
        group = parser.add_mutually_exclusive_group()
        for option in options:
            option(group)  # type: ignore[arg-type]  # a group adds arguments as a parser does

    return add


def seconds(text: str) -> float:
    if not 0 < float(text) < float("inf"):
        raise ValueError(text)
    return float(text)


seconds.__name__ = "number of seconds"  # argparse says "invalid ... value"

FIND = "the folder with upstream/ and patches/ (default: here or above, else those of patcher)"
SERIES = value("--series", "NAME", "the series of patches")
VERBOSE = switch("-v", "--verbose", help="show every patch, not only those that are not clean")
PROJECT = (form(), value("--root", "DIR", FIND))
REQUEST = (
    *PROJECT,
    SERIES,
    values("--set", "PATCH.OPTION=VALUE", "set an option; may be repeated"),
)
BUILD = (*REQUEST, value("--out", "DIR", "the folder that is built (default: build)"))


def runs(number: str) -> Add:
    return value("runs", "RUN", "the output folder of a run, or its metrics.jsonl", nargs=number)


COMMANDS: dict[str, tuple[str, Sequence[Add]]] = {
    "apply": (
        "write the patched scripts, all or nothing",
        (*BUILD, VERBOSE, switch("--overwrite", help="replace build files edited by hand")),
    ),
    "check": (
        "exit 1 if a patch is stale or obsolete, or the build is not what apply would write",
        (form("sarif"), *BUILD[1:], VERBOSE),
    ),
    "diff": (
        "show what apply does to upstream, as a unified diff; exit like check",
        (*BUILD, value("patch", "PATCH", "only what these patches do", nargs="*")),
    ),
    "list": (
        "show every patch with its series, state, sites and purpose",
        (form("markdown"), *PROJECT[1:], SERIES),
    ),
    "export": (
        "write one .patch a patch with DEP-3 headers, and a series file",
        (
            *(*REQUEST, VERBOSE, value("dir", "DIR", "the folder to write to")),
            switch("--overwrite", help="replace files there that differ"),
        ),
    ),
    "vendor": (
        "try every series on another upstream, and take that in with --write",
        (
            *PROJECT,
            value("source", "SOURCE", "a folder, a git repository, a .zip or .tar archive"),
            value("--rev", "R", "of a git repository: branch, tag or commit (default: HEAD)"),
            value("--path", "DIR", "the folder in SOURCE with the scripts, if that is not clear"),
            switch("--write", help="write upstream/, if every patch of every series is clean"),
            switch("--accept-stale", help="write it even if patches are stale or obsolete"),
            switch("--accept-licence", help="write it even if the licence is another one"),
            value("--timeout", "S", "for git, in s (default: 120)", type=seconds, default=120),
        ),
    ),
    "report": (
        "write one page to look at: patches, diffs with their reasons, curves; exit like check",
        (
            *(*BUILD, runs("*")),
            value("--verify", "FILE", "also show what `verify --format json` has printed"),
            value("--output", "FILE", "the page (default: report.html)", "-o"),
        ),
    ),
    "plot": (
        "draw the curves of runs, several over each other",
        (
            form(),
            runs("+"),
            value("--output", "FILE", "a .png, .svg or .pdf (default: curves.png)", "-o"),
        ),
    ),
    "verify": (
        "train a few steps on this machine, and check all that comes of it",
        (
            *BUILD[1:],
            switch("--quick", help="a smaller model and two steps an epoch: a minute or so"),
            value("--data", "DIR", "train on some images of this data set (default: drawn digits)"),
            value("--arch", "NAME", "the model (default: resnet18; with --quick a smaller one)"),
            value(
                "--batch-size", "N", "images a step, over all devices (default: 8 each)", type=int
            ),
            switch("--cpu", help="use no devices"),
            value("--folder", "DIR", "a new folder that keeps all logs and checkpoints"),
            value(
                "--format",
                "KIND",
                "text, json or junit (default: text)",
                choices=("text", "json", "junit"),
                default="text",
            ),
        ),
    ),
    "rewrite": (
        "mend the guide's three faults in scripts that are not ours",
        (
            form("sarif"),
            value("paths", "PATH", "files, folders, patterns, or - for stdin", nargs="+"),
            either(
                switch("--diff", help="show what would change, and write nothing (the default)"),
                switch("--write", help="write the files; what came from stdin goes to stdout"),
            ),
            values("--select", "PATCH,...", "only these patches"),
            values("--exclude", "PATTERN", "leave out what matches this"),
            switch("--both-spellings", help="let the option be --local_rank and --local-rank"),
            value("--jobs", "N", "processes (default: one for each core)", "-j", type=int),
            switch("-v", "--verbose", help="also name what is already right, with its line"),
        ),
    ),
    "new": (
        "begin a patch: its file, its test, and its line in the series",
        (
            *PROJECT,
            value("name", "NAME", "what a series calls it, such as print_freq"),
            values("--file", "F", "a script that it edits; may be repeated", required=True),
            value("--function", "F", "the function that it edits", required=True),
            value("--topic", "T", "a mapping in patches/__init__.py (default: the last)"),
        ),
    ),
}


def parser_for(argv: Sequence[str]) -> argparse.ArgumentParser:
    """The parser.  argparse is slow: only the options of the command at hand are made."""
    parser = argparse.ArgumentParser(
        prog="patcher",
        description="Apply a series of small, counted codemods to pristine training scripts, "
        "and prove what was done.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"patcher {patcher.__version__}")
    parser.set_defaults(at="", series=None, set=[], out=None, verbose=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (help, options) in COMMANDS.items():
        command = commands.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.")
        for add in options if argv[:1] == [name] else ():
            add(command)
    return parser


class _Unwritable(Exception):
    """Stdout takes no more: a full disk, for one."""


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if sys.stderr is None:  # `2>&-`: what is meant for it must not go elsewhere
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:  # `>&-`
        return _end_without_stdout("it is closed")
    try:
        return _answer(argv)
    except BrokenPipeError:  # `patcher diff | head`
        _drop(sys.stdout)
        return 1
    except _Unwritable as error:
        _drop(sys.stdout)
        return _end_without_stdout(str(error))


def _answer(argv: list[str]) -> int:
    with _printing():
        args = parser_for(argv).parse_args(argv)  # --help ends here
    if hasattr(sys.stdout, "reconfigure"):  # a finding quotes code, which a terminal may not know
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        own = {"plot": _plot, "rewrite": _rewrite, "verify": _verify}
        return own.get(args.command, _run)(args)
    except (BrokenPipeError, _Unwritable):
        raise
    except KeyboardInterrupt:
        return 130
    except (Problem, Problems) as error:
        from patcher.report import Report

        problems = error.problems if isinstance(error, Problems) else [error]
        return _show(args, Report(args.command, args.series or "", problems=problems))
    except Exception:
        import traceback

        traceback.print_exc()
        print("patcher: this is a fault of patcher itself, please report it", file=sys.stderr)
        return 2


def _run(args: argparse.Namespace) -> int:
    project = Project.find(args.root)
    args.at = "" if os.path.samefile(project.root, ".") else os.path.abspath(project.root)
    out = Path(args.out or _default_out(args.root, project))
    request = _request(args, project, out)
    if not _is_current(args, project, request, out):
        return _show(args, _report(args, project, request, out))
    state = "nothing to do" if args.command == "apply" else "up to date"
    summary = f"{out}: {state}, series {request.series}"
    if args.format == "text":  # the common case imports nothing more to say that all is well
        with _printing():
            print(*([f"project {args.at}"] if args.at else []), summary, sep="\n")
        return 0
    from patcher.report import Report

    return _show(args, Report(args.command, request.series, summary=summary))


def _report(args: argparse.Namespace, project: Project, request: Request, out: Path) -> Report:
    from patcher import commands

    match args.command:
        case "apply":
            return commands.apply(project, request, out, args.overwrite)
        case "check":
            return commands.check(project, request, out)
        case "diff":
            return commands.diff(project, request, out, args.patch)
        case "list":
            return commands.listing(project, args.series)
        case "export":
            return commands.export_to(project, request, Path(args.dir), args.overwrite)
        case "report":
            page = Path(args.output or "report.html")
            return commands.write_page(project, request, out, args.runs, args.verify, page)
        case "new":
            return commands.new(project, args.name, args.file, args.function, args.topic)
    return commands.vendor(
        project,
        args.source,
        rev=args.rev,
        path=args.path,
        write=args.write,
        accept_stale=args.accept_stale,
        accept_licence=args.accept_licence,
        timeout=args.timeout,
    )


def _default_out(root: str | None, project: Project) -> str:
    """`build` here; in a folder below a project that nobody named, that of the project."""
    above = root is None and project.root in Path.cwd().parents
    return os.path.relpath(project.root / "build") if above else "build"


def _request(args: argparse.Namespace, project: Project, out: Path) -> Request:
    """What is asked for; else, if only looking, what was built; else the default series."""
    by_option = {text.partition("=")[0]: text for text in args.set}  # the last of two wins
    sets = tuple(sorted(by_option.values()))
    if args.command in ("check", "diff", "report") and not args.series and not sets:
        with contextlib.suppress(Problem):
            written = manifest.read(out)
            if written and written["series"] in project.all_series():
                return manifest.request_of(written)
    return Request(args.series or project.default_series(), sets)


def _is_current(args: argparse.Namespace, project: Project, request: Request, out: Path) -> bool:
    """Whether nothing has to be rendered to answer."""
    if args.verbose or args.command not in ("apply", "check"):
        return False
    if args.command == "apply":
        return not args.overwrite and manifest.is_current(project, request, out)
    try:
        return manifest.is_current(project, request, out)
    except Problem:  # a damaged manifest: the whole comparison says so, among the rest
        return False


def _rewrite(args: argparse.Namespace) -> int:
    from patcher.report import show
    from patcher.rewrite import batch, results

    found = batch.run(
        args.paths,
        args.select,
        args.exclude,
        args.write,
        args.both_spellings,
        args.jobs,
        progress=args.format == "text",
    )
    with _printing():
        if args.format == "json":
            print(results.as_json(found))
        elif args.format == "github":
            print(*results.github(found), sep="\n")
        elif args.format == "sarif":
            from patcher import sarif

            print(sarif.of_results(found))
        else:
            sys.stdout.buffer.writelines(result.shown for result in found.results)
            sys.stdout.buffer.flush()
            filtering = args.write and "-" in args.paths  # then stdout is the rewritten script
            show(results.text(found, args.verbose), sys.stderr if filtering else sys.stdout)
    return found.code


def _plot(args: argparse.Namespace) -> int:
    from patcher import commands

    return _show(args, commands.plot(args.runs, Path(args.output or "curves.png")))


def _verify(args: argparse.Namespace) -> int:
    from patcher import commands
    from patcher.verify import hosts, show

    team = hosts.ranks(Path(args.folder) if args.folder else None)
    if team and team.rank:
        return hosts.follow(team)
    project = Project.find(args.root)
    out = Path(args.out or _default_out(args.root, project))
    options = {
        "data": Path(args.data) if args.data else None,
        "folder": Path(args.folder) if args.folder else None,
        **{name: getattr(args, name) for name in ("quick", "arch", "batch_size", "cpu")},
    }
    # The table is for a person; json and junit go to stdout, and where the work is to stderr.
    with show.Screen(sys.stdout if args.format == "text" else sys.stderr) as screen:
        request = _request(args, project, out)
        found, seconds = commands.verify(project, request, out, screen, **options)
    with _printing():
        if args.format == "text":
            screen.end(found, seconds)
        else:
            print((show.as_json if args.format == "json" else show.as_junit)(found, seconds))
    return show.code(found)


def _show(args: argparse.Namespace, what: Report) -> int:
    from dataclasses import replace

    from patcher import report

    what = replace(what, root=args.at)
    with _printing():
        if args.format == "json":
            print(report.as_json(what))
        elif args.format == "github":
            print(*report.github(what), sep="\n")
        elif args.format == "sarif":
            from patcher import sarif

            print(sarif.of_report(what))
        elif args.format == "markdown" and what.rows:
            print(*report.markdown(what), sep="\n")
        else:
            sys.stdout.flush()
            sys.stdout.buffer.write(what.diff)
            # A diff on stdout is for a program; and bad usage goes where argparse says it.
            usage = what.problems and all(p.code == 2 for p in what.problems) and not what.notes
            stream = sys.stderr if args.command == "diff" or usage else sys.stdout
            report.show(report.text(what, args.verbose), stream)
            stream.flush()
    return what.code


@contextlib.contextmanager
def _printing() -> Iterator[None]:
    """Nothing but output is made in here, so an OSError is that of its stream."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _Unwritable(error.strerror) from error


def _drop(stream: TextIO) -> None:
    """Let Python end without another try to write what is left."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _end_without_stdout(why: str) -> int:
    try:
        print(f"patcher: cannot write to stdout: {why}", file=sys.stderr, flush=True)
    except OSError:
        _drop(sys.stderr)
    return 2
