"""The command line: arguments in, findings and an exit status out.  The only module that prints.

Exit status: 0 fine, 1 a human has to look, 2 bad usage, unreadable input or a crash.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import patcher
from patcher.build import manifest
from patcher.build.project import Project, Request
from patcher.core.problem import Problem, Problems

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
  patcher rewrite --write my_scripts     mend the same faults in other scripts

exit status: 0 fine, 1 a human has to look, 2 bad usage, unreadable input or a crash
"""


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
        args = _parser(argv).parse_args(argv)  # --help ends here
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(
            errors="backslashreplace"
        )  # a finding quotes code, which a terminal may not know
    try:
        try:
            return _run(args)
        except (Problem, Problems) as error:
            return _fail(args, getattr(error, "problems", [error]))
    except (BrokenPipeError, _Unwritable):
        raise
    except KeyboardInterrupt:
        return 130
    except Exception:
        import traceback

        traceback.print_exc()
        print("patcher: this is a fault of patcher itself, please report it", file=sys.stderr)
        return 2


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


def _drop(stream) -> None:
    """Let Python end without another try to write what is left."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _end_without_stdout(why: str) -> int:
    try:
        print(f"patcher: cannot write to stdout: {why}", file=sys.stderr, flush=True)
    except OSError:
        _drop(sys.stderr)
    return 2


def _run(args) -> int:
    if args.command == "rewrite":
        return _rewrite(args)
    project = Project.find(args.root)
    args.at = "" if os.path.samefile(project.root, ".") else os.path.abspath(project.root)
    out = Path(getattr(args, "out", None) or _default_out(args.root, project))
    request = _request(args, project, out)
    if _nothing_to_do(args, project, request, out):
        done = "nothing to do" if args.command == "apply" else "is what apply would write"
        summary = f"{out}: {done}, series {request.series}"
        if args.format == "text":  # the common case imports nothing more to say that all is well
            with _printing():
                print(*([f"project {args.at}"] if args.at else []), summary, sep="\n")
            return 0
        from patcher.report import Report

        return _show(args, Report(args.command, request.series, summary=summary))
    from patcher import commands

    return _show(args, commands.run(args, project, request, out))


def _default_out(root: str | None, project: Project) -> str:
    """`build` here; in a folder below a project that nobody named, the one beside its `upstream/`."""
    above = root is None and project.root in Path.cwd().parents
    return os.path.relpath(project.root / "build") if above else "build"


def _rewrite(args) -> int:
    from patcher.report import show
    from patcher.rewrite import command, report

    found = command.run(
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
            print(report.as_json(found))
        elif args.format == "github":
            print(*report.github(found), sep="\n")
        else:
            for result in found.results:
                sys.stdout.buffer.write(result.shown)
            sys.stdout.buffer.flush()
            filtering = args.write and "-" in args.paths  # then stdout is the rewritten script
            show(report.text(found, args.verbose), sys.stderr if filtering else sys.stdout)
    return found.code


def _nothing_to_do(args, project: Project, request: Request, out: Path) -> bool:
    if args.command == "apply" and not args.overwrite:
        return manifest.is_current(project, request, out)
    try:
        return args.command == "check" and manifest.is_current(project, request, out)
    except Problem:  # a damaged manifest: the whole comparison says so, among the rest
        return False


def _request(args, project: Project, out: Path) -> Request:
    """What the command line asks for; for `check` and `diff`, else what the build was made as; else the default."""
    sets = {
        text.partition("=")[0]: text for text in getattr(args, "set", None) or ()
    }  # the last of two wins
    sets = tuple(sorted(sets.values()))
    if args.command in ("check", "diff") and not args.series and not sets:
        try:
            written = manifest.read(out)
            if written and written["series"] in project.all_series():
                return manifest.request_of(written)
        except Problem:
            pass
    return Request(args.series or project.default_series(), sets)


def _fail(args, problems: list[Problem]) -> int:
    from patcher.report import Report

    return _show(args, Report(args.command, getattr(args, "series", None) or "", problems=problems))


def _show(args, what) -> int:
    from dataclasses import replace

    from patcher import report

    what = replace(what, root=getattr(args, "at", ""))
    with _printing():
        if args.format == "json":
            print(report.as_json(what))
        elif args.format == "github":
            print(*report.github(what), sep="\n")
        elif args.format == "markdown" and what.rows:
            print(*report.markdown(what), sep="\n")
        else:
            if what.diff:
                sys.stdout.flush()
                sys.stdout.buffer.write(what.diff)
            # A diff on stdout is for a program; and bad usage goes where argparse says it.
            usage = (
                what.problems
                and all(problem.code == 2 for problem in what.problems)
                and not what.notes
            )
            stream = sys.stderr if args.command == "diff" or usage else sys.stdout
            report.show(report.text(what), stream)
            stream.flush()
    return what.code


def _parser(argv: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="patcher",
        description="Apply a series of small, counted codemods to pristine training scripts, and prove what was done.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"patcher {patcher.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(
        name: str,
        help: str,
        *,
        project=True,
        series=True,
        out=True,
        formats=("text", "json", "github"),
    ):
        sub = commands.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".")
        if argv[:1] != [name]:
            return (
                argparse.ArgumentParser()
            )  # argparse is slow: only the options that will be parsed are made
        sub.add_argument(
            "--format",
            choices=formats,
            default="text",
            help="how findings are shown (default: text)",
        )
        if not project:
            return sub
        sub.add_argument(
            "--root",
            metavar="DIR",
            help="the folder with upstream/ and patches/ "
            "(default: this one or one above it, else those that came with patcher)",
        )
        if name == "vendor":
            sub.set_defaults(series=None)  # all of them
        else:
            sub.add_argument("--series", metavar="NAME", help="the series of patches")
        if series:
            sub.add_argument(
                "--set",
                action="append",
                metavar="PATCH.OPTION=VALUE",
                help="set an option of a patch; may be repeated",
            )
        if out:
            sub.add_argument(
                "--out", metavar="DIR", help="the folder that is built (default: build)"
            )
        return sub

    sub = command("apply", "write the patched scripts, all or nothing")
    sub.add_argument(
        "--overwrite", action="store_true", help="replace build files that were edited by hand"
    )
    command(
        "check",
        "exit 1 if a patch is stale or obsolete, or the build is not what apply would write",
    )
    sub = command(
        "diff",
        "show what apply does to upstream, as a unified diff; the exit status is that of check",
    )
    sub.add_argument("patch", nargs="*", metavar="PATCH", help="only what these patches do")
    command(
        "list",
        "show every patch with its series, state, sites and purpose",
        series=False,
        out=False,
        formats=("text", "json", "github", "markdown"),
    )
    sub = command(
        "export", "write one .patch a patch with DEP-3 headers, and a series file", out=False
    )
    sub.add_argument("dir", metavar="DIR", help="the folder to write to")
    sub.add_argument("--overwrite", action="store_true", help="replace files there that differ")
    sub = command(
        "vendor",
        "try every series on another upstream, and take that in with --write",
        series=False,
        out=False,
    )
    sub.add_argument(
        "source",
        metavar="SOURCE",
        help="a folder, a git repository (path or URL), a .zip or .tar archive",
    )
    sub.add_argument(
        "--rev", metavar="R", help="of a git repository: branch, tag or commit (default: HEAD)"
    )
    sub.add_argument(
        "--path",
        metavar="DIR",
        help="the folder in SOURCE where the scripts lie, if that is not clear",
    )
    sub.add_argument(
        "--write",
        action="store_true",
        help="write upstream/, if every patch of every series is clean",
    )
    sub.add_argument(
        "--accept-stale", action="store_true", help="write it even if patches are stale or obsolete"
    )
    sub.add_argument(
        "--accept-licence", action="store_true", help="write it even if the licence is another one"
    )
    sub.add_argument(
        "--timeout",
        type=_seconds,
        default=120,
        metavar="S",
        help="seconds that git may take (default: 120)",
    )
    sub = command(
        "rewrite",
        "mend the guide's three faults in scripts that are not ours",
        project=False,
        series=False,
        out=False,
    )
    sub.add_argument(
        "paths", nargs="+", metavar="PATH", help="files, folders, patterns, or - for stdin"
    )
    mode = sub.add_mutually_exclusive_group()
    mode.add_argument(
        "--diff",
        action="store_true",
        help="show what would change, and write nothing (the default)",
    )
    mode.add_argument(
        "--write", action="store_true", help="write the files; what came from stdin goes to stdout"
    )
    sub.add_argument(
        "--select", action="append", default=[], metavar="PATCH,...", help="only these patches"
    )
    sub.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="PATTERN",
        help="leave out what matches this",
    )
    sub.add_argument(
        "--both-spellings",
        action="store_true",
        help="let the option be --local_rank and --local-rank",
    )
    sub.add_argument(
        "-j", "--jobs", type=int, metavar="N", help="processes (default: one for each core)"
    )
    sub.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="also name what is already right, with the line that makes it so",
    )
    return parser


def _seconds(text: str) -> float:
    if not 0 < float(text) < float("inf"):
        raise ValueError(text)
    return float(text)


_seconds.__name__ = "number of seconds"  # argparse says "invalid ... value"
