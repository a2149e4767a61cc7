"""What `patcher rewrite` and the engine cost against other tools on the same job, and whether each gets it right.

    python benchmarks/engine.py [--runs 5] [--tools DIR] [--all]

Whole processes in CPU time, children included, by turns (A B C A B C ...); a ratio is the median of the ratios of a
turn.  The job is one edit, `x[:k].view(-1)` to `x[:k].reshape(-1)`, on real files (see corpus.py), and after each run
every file is compared with what it should be.  The other tools are installed into a folder of their own.  Where the
slow ones would take minutes they run in smaller rows only, unless `--all`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PYTHON = sys.executable
TOOLS = ["ast-grep-cli==0.51.1", "semgrep==1.185.0", "fixit==2.1.0"]
PATTERN, FIX = "$A[:$K].view(-1)", "$A[:$K].reshape(-1)"

SEMGREP_RULE = f"""\
rules:
  - id: reshape
    languages: [python]
    severity: INFO
    message: reshape
    pattern: {PATTERN}
    fix: {FIX}
"""
FIXIT_CONFIG = """\
[tool.fixit]
root = true
enable = [".reshape_rule"]
disable = ["fixit.rules"]
"""
MATCH = """\
m.Call(
    func=m.Attribute(value=m.Subscript(slice=[m.SubscriptElement(m.Slice(lower=None))]), attr=m.Name("view")),
    args=[m.Arg(m.UnaryOperation(m.Minus(), m.Integer("1")))],
)"""
FIXIT_RULE = f"""\
import libcst as cst
import libcst.matchers as m
from fixit import LintRule

SITE = {MATCH}


class Reshape(LintRule):
    def visit_Call(self, node):
        if m.matches(node, SITE):
            self.report(node, "reshape", replacement=node.with_deep_changes(node.func, attr=cst.Name("reshape")))
"""
LIBCST_COMMAND = f"""\
import libcst as cst
import libcst.matchers as m
from libcst.codemod import VisitorBasedCodemodCommand

SITE = {MATCH}


class Reshape(VisitorBasedCodemodCommand):
    DESCRIPTION = "reshape"

    def leave_Call(self, original_node, updated_node):
        if not m.matches(updated_node, SITE):
            return updated_node
        return updated_node.with_deep_changes(updated_node.func, attr=cst.Name("reshape"))
"""
# Six scripts and fifteen patches: by the engine; and one after the other, each through LibCST's `transform_module`,
# as codemods are run: every patch parses, visits and prints the whole module.
SERIES = """\
import sys
from pathlib import Path
from patcher.core.engine import render
from patcher.build.project import Project, Request
root = Path({root!r})
project = Project(root)
patches, support = project.patches_of(Request("standard"))[:15], project.support()
files = [(p.name, p.read_bytes()) for p in sorted((root / "upstream").glob("*.py"))] * 3
out = [render(name, source, patches, support).after for name, source in files]
"""
COMMANDS = """\
import sys
from pathlib import Path
import libcst
from libcst.codemod import Codemod, CodemodContext
from patcher.core.draft import Draft
from patcher.core.engine import Printer, finish
from patcher.build.project import Project, Request
root = Path({root!r})
project = Project(root)
patches, support = project.patches_of(Request("standard"))[:15], project.support()

class Command(Codemod):
    def __init__(self, patch, draft):
        super().__init__(CodemodContext())
        self.patch = patch.fresh()
        self.patch.draft = draft

    def transform_module_impl(self, tree):
        patch, printer = self.patch, Printer()
        patch.module, patch.text = tree, lambda statement: printer.text(tree, statement)
        return tree.with_changes(body=[node.visit(patch) for node in tree.body])

class Finish(Codemod):
    def __init__(self, pristine, draft):
        super().__init__(CodemodContext())
        self.pristine, self.draft = pristine, draft

    def transform_module_impl(self, tree):
        return finish(self.pristine, tree, self.draft)

files = [(p.name, p.read_bytes()) for p in sorted((root / "upstream").glob("*.py"))] * 3
out = []
for name, source in files:
    pristine, draft = libcst.parse_module(source), Draft(source, support)
    commands = [Command(patch, draft) for patch in patches if name in patch.sites]
    for command in [*commands, Finish(pristine, draft)]:
        source = command.transform_module(libcst.parse_module(source)).bytes
    out.append(source)
"""
# Commands that do not know of each other insert functions in another order, so lines are compared without it.
LINES = "sorted(filter(bytes.strip, b.split(b'\\n')))"
HASH = f"import hashlib; print([hashlib.sha256(repr({LINES}).encode()).hexdigest() for b in out])\n"


class Tool(NamedTuple):
    """A command on `files/` in its working directory, and the most files that it is given without `--all`."""

    command: list[str]
    most: int = 2000
    codes: tuple[int, ...] = (0,)
    works: bool = True  # False: not a tool but a yardstick


def tools(folder: Path) -> dict[str, Tool]:
    """Every contestant, those of others installed into `folder`."""
    if not (folder / "bin/ast-grep").exists():
        print(f"installing {', '.join(TOOLS)} into {folder}", flush=True)
        subprocess.run([PYTHON, "-m", "venv", folder], check=True)
        subprocess.run(
            [folder / "bin/python", "-m", "pip", "install", "--quiet", *TOOLS], check=True
        )
    bin = folder / "bin"
    libcst = [
        "-m",
        "libcst.tool",
        "codemod",
        "-x",
        "reshape_libcst.Reshape",
        "files",
        "--no-format",
        "--hide-progress",
    ]
    return {
        "patcher rewrite": Tool(
            [PYTHON, "-m", "patcher", "rewrite", "--write", "--select", "reshape_topk", "files"]
        ),
        "ast-grep": Tool(
            [f"{bin}/ast-grep", "run", "-p", PATTERN, "-r", FIX, "-l", "python", "-U", "files"]
        ),
        "sed": Tool(
            [
                "sh",
                "-c",
                r"find files -name '*.py' | xargs sed -i 's/\(\[:k\]\)\.view(-1)/\1.reshape(-1)/'",
            ]
        ),
        "libcst.tool": Tool([PYTHON, *libcst], most=200),
        "semgrep": Tool(
            [
                f"{bin}/semgrep",
                "scan",
                "--metrics=off",
                "--disable-version-check",
                "--quiet",
                "--no-git-ignore",
            ]
            + ["--config=rule.yaml", "--autofix", "files"],
            most=200,
        ),
        "fixit": Tool(
            [f"{bin}/fixit", "--quiet", "fix", "--automatic", "files"], most=200, codes=(0, 1)
        ),
    }


def measured(tool: Tool, folder: Path) -> tuple[float, float]:
    """CPU seconds of a process and its children, and MiB of the largest of them."""
    path = os.pathsep.join([f"{Path(tool.command[0]).parent}", os.environ["PATH"]])
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "PATH": path}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed has its bytecode
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            tool.command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in tool.codes:
            log.seek(0)
            raise SystemExit(
                f"{' '.join(tool.command)}: {process.returncode}\n{log.read().decode()[-3000:]}"
            )
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def row(
    title: str, scratch: Path, runs: int, contestants: dict[str, Tool], files: int, matching: int
) -> None:
    """Time all contestants on one corpus, by turns, and compare what each leaves."""
    pristine, expected, folder = scratch / "pristine", scratch / "expected", scratch / "work"
    for made in (pristine, expected):
        shutil.rmtree(made, ignore_errors=True)
    # In a process of its own: a child counts its parent's memory as its own until it has more.
    make = [PYTHON, ROOT / "benchmarks/corpus.py", pristine, expected, str(files), str(matching)]
    subprocess.run(make, check=True)
    names = [path.relative_to(expected) for path in expected.rglob("*.py")]
    print(f"\n{title}", flush=True)
    for name, text in (
        ("rule.yaml", SEMGREP_RULE),
        ("pyproject.toml", FIXIT_CONFIG),
        ("reshape_rule.py", FIXIT_RULE),
        ("reshape_libcst.py", LIBCST_COMMAND),
    ):
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    (folder / ".libcst.codemod.yaml").write_text("modules: ['']\n")
    times: dict[str, list[float]] = {name: [] for name in contestants}
    memory, right = {}, {}
    for turn in range(runs + 1):
        for name, tool in contestants.items():
            slow = tool.most < 2000
            if turn > (1 if slow and files > 1 else runs):
                continue
            if turn == 0 and slow and files > 1:
                continue  # nothing to warm up in a run of a minute
            shutil.rmtree(folder / "files", ignore_errors=True)
            shutil.copytree(pristine, folder / "files")
            seconds, memory[name] = measured(tool, folder)
            if turn:
                times[name].append(seconds)
            right[name] = sum(
                (folder / "files" / n).read_bytes() == (expected / n).read_bytes() for n in names
            )
    ours = times["patcher rewrite"]
    print(f"  {'CPU':>9} {'ours is':>9}  {'memory':>9}  files as they should be")
    for name, seconds in times.items():
        ratio = statistics.median(a / b for a, b in zip(ours, seconds))
        says = f"{right[name]} of {files}" if contestants[name].works else ""
        ratio = "" if name == "patcher rewrite" else f"{ratio:7.2f} x"
        print(
            f"  {statistics.median(seconds):7.2f} s {ratio:>9}  {memory[name]:5.0f} MiB  {says:14} {name}",
            flush=True,
        )


def series(scratch: Path, runs: int) -> None:
    """The engine on six scripts and fifteen patches, against the same patches as codemod commands."""
    print("\n6 files x 15 patches of a series", flush=True)
    programs = {"patcher.engine.render": SERIES, "transform_module, one after the other": COMMANDS}
    times: dict[str, list[float]] = {name: [] for name in programs}
    outputs = set()
    for turn in range(runs + 1):
        for name, program in programs.items():
            command = [PYTHON, "-c", program.format(root=str(ROOT))]
            seconds, _ = measured(Tool(command), scratch)
            if turn:
                times[name].append(seconds)
            else:
                environment = {**os.environ, "PYTHONPATH": str(ROOT)}
                command[-1] += HASH
                outputs.add(
                    subprocess.run(command, capture_output=True, check=True, env=environment).stdout
                )
    assert len(outputs) == 1, "the engine and the commands make different files"
    ours, theirs = times.values()
    for name, seconds in times.items():
        print(f"  {statistics.median(seconds):7.2f} s  {name}")
    print(f"  {statistics.median(a / b for a, b in zip(ours, theirs)):7.3f} x")


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Time patcher rewrite and the engine against other tools."
    )
    parser.add_argument(
        "--runs", type=int, default=5, help="turns that count (default: 5); slow tools get one"
    )
    parser.add_argument(
        "--tools",
        type=Path,
        default=ROOT / ".venv-bench",
        help="where the other tools are installed",
    )
    parser.add_argument(
        "--all", action="store_true", help="the slow tools on 2,000 files too: half an hour"
    )
    parser.add_argument(
        "--rows", default="1,200,200s,2000,2000s,series", help="which rows (default: all)"
    )
    parser.add_argument("--only", default="", help="only these of the other tools, by name")
    options = parser.parse_args()
    rows = options.rows.split(",")
    only = options.only and ["patcher rewrite", *options.only.split(",")]
    contestants = {
        n: t for n, t in tools(options.tools.absolute()).items() if not only or n in only
    }
    yardsticks = {
        "python -c 'import libcst'": Tool([PYTHON, "-c", "import libcst"], works=False),
        "python -c pass": Tool([PYTHON, "-c", "pass"], works=False),
    }
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        if "1" in rows:
            row("1 file, one patch, cold", scratch, options.runs, contestants | yardsticks, 1, 1)
        for files, key, matching, title in (
            (200, "200", 200, "200 files, all match"),
            (200, "200s", 10, "200 files, 5 % match"),
            (2000, "2000", 2000, "2,000 files, all match"),
            (2000, "2000s", 100, "2,000 files, 5 % match"),
        ):
            if key in rows:
                chosen = {n: t for n, t in contestants.items() if options.all or t.most >= files}
                row(title, scratch, options.runs, chosen, files, matching)
        if "series" in rows:
            series(scratch, options.runs)


if __name__ == "__main__":
    main()
