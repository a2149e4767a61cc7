"""What `patcher rewrite` and the engine cost, and whether they get it right, beside other tools.

    python benchmarks/engine.py [--runs 5] [--tools DIR] [--all]

Whole processes in CPU time, children included, by turns (A B C A B C ...); a ratio is the median
of the ratios of a turn.  The job is one edit, `x[:k].view(-1)` to `x[:k].reshape(-1)`, on real
files (see corpus.py), and after each run every file is compared with what it should be.  The other
tools are installed into a folder of their own.  The slow ones run in the smaller rows only, unless
`--all` is given.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from timing import PYTHON, ROOT, environment, ratio, spent

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
    func=m.Attribute(
        value=m.Subscript(slice=[m.SubscriptElement(m.Slice(lower=None))]), attr=m.Name("view")
    ),
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
            reshape = node.with_deep_changes(node.func, attr=cst.Name("reshape"))
            self.report(node, "reshape", replacement=reshape)
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
# Six scripts and fifteen patches: by the engine; and one after the other, each through LibCST's
# `transform_module`, as codemods are run: every patch parses, visits and prints the whole module.
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
from patcher.core.engine import finish
from patcher.core.single_pass import Printer
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
# Commands that do not know of each other insert functions in another order: lines are sorted.
LINES = "sorted(filter(bytes.strip, b.split(b'\\n')))"
HASH = f"import hashlib; print([hashlib.sha256(repr({LINES}).encode()).hexdigest() for b in out])\n"


class Tool(NamedTuple):
    """A command on `files/` in its working directory, and its most files without `--all`."""

    command: list[str]
    most: int = 2000
    codes: tuple[int, ...] = (0,)
    works: bool = True  # False: not a tool but a yardstick


def tools(folder: Path) -> dict[str, Tool]:
    """Every contestant, those of others installed into `folder`."""
    bin = folder / "bin"
    if not (bin / "ast-grep").exists():
        print(f"installing {', '.join(TOOLS)} into {folder}", flush=True)
        subprocess.run([PYTHON, "-m", "venv", folder], check=True)
        subprocess.run([bin / "python", "-m", "pip", "install", "--quiet", *TOOLS], check=True)
    ours = "-m patcher rewrite --write --select reshape_topk files"
    libcst = "-m libcst.tool codemod -x reshape_libcst.Reshape files --no-format --hide-progress"
    semgrep = "scan --metrics=off --disable-version-check --quiet --no-git-ignore"
    sed = r"s/\(\[:k\]\)\.view(-1)/\1.reshape(-1)/"
    sed = f"find files -name '*.py' | xargs sed -i '{sed}'"
    grep = [f"{bin}/ast-grep", "run", "-p", PATTERN, "-r", FIX, "-l", "python", "-U", "files"]
    semgrep = [f"{bin}/semgrep", *semgrep.split(), "--config=rule.yaml", "--autofix", "files"]
    fixit = [f"{bin}/fixit", "--quiet", "fix", "--automatic", "files"]
    return {
        "patcher rewrite": Tool([PYTHON, *ours.split()]),
        "ast-grep": Tool(grep),
        "sed": Tool(["/bin/sh", "-c", sed]),
        "libcst.tool": Tool([PYTHON, *libcst.split()], most=200),
        "semgrep": Tool(semgrep, most=200),
        "fixit": Tool(fixit, most=200, codes=(0, 1)),
    }


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
    folder.mkdir(exist_ok=True)
    (folder / "rule.yaml").write_text(SEMGREP_RULE)
    (folder / "pyproject.toml").write_text(FIXIT_CONFIG)
    (folder / "reshape_rule.py").write_text(FIXIT_RULE)
    (folder / "reshape_libcst.py").write_text(LIBCST_COMMAND)
    (folder / ".libcst.codemod.yaml").write_text("modules: ['']\n")
    times: dict[str, list[float]] = {name: [] for name in contestants}
    memory, right = {}, {}
    for turn in range(runs + 1):
        for name, tool in contestants.items():
            if tool.most < 2000 and files > 1 and turn != 1:
                continue  # one run of a minute, which needs no warming up
            shutil.rmtree(folder / "files", ignore_errors=True)
            shutil.copytree(pristine, folder / "files")
            seconds, memory[name] = spent(tool.command, folder, tool.codes)
            if turn:
                times[name].append(seconds)
            done = ((folder / "files" / n, expected / n) for n in names)
            right[name] = sum(ours.read_bytes() == wanted.read_bytes() for ours, wanted in done)
    ours = times["patcher rewrite"]
    print(f"  {'CPU':>9} {'ours is':>9}  {'memory':>9}  files as they should be")
    for name, seconds in times.items():
        cpu = statistics.median(seconds)
        factor = "" if name == "patcher rewrite" else f"{ratio(ours, seconds):7.2f} x"
        says = f"{right[name]} of {files}" if contestants[name].works else ""
        print(f"  {cpu:7.2f} s {factor:>9}  {memory[name]:5.0f} MiB  {says:14} {name}", flush=True)


def series(scratch: Path, runs: int) -> None:
    """The engine on six scripts and fifteen patches, against the same ones as codemod commands."""
    print("\n6 files x 15 patches of a series", flush=True)
    programs = {"patcher.engine.render": SERIES, "transform_module, one after the other": COMMANDS}
    times: dict[str, list[float]] = {name: [] for name in programs}
    outputs = set()
    for turn in range(runs + 1):
        for name, program in programs.items():
            command = [PYTHON, "-c", program.format(root=str(ROOT))]
            seconds, _ = spent(command, scratch)
            if turn:
                times[name].append(seconds)
            else:
                command[-1] += HASH
                run = {"capture_output": True, "check": True, "env": environment()}
                outputs.add(subprocess.run(command, **run).stdout)
    assert len(outputs) == 1, "the engine and the commands make different files"
    ours, theirs = times.values()
    for name, seconds in times.items():
        print(f"  {statistics.median(seconds):7.2f} s  {name}")
    print(f"  {ratio(ours, theirs):7.3f} x")


def main() -> None:
    parser = argparse.ArgumentParser(description="Time rewrite and the engine beside other tools.")
    add, default = parser.add_argument, ROOT / ".venv-bench"
    add("--runs", type=int, default=5, help="turns that count (default: 5); slow tools get one")
    add("--tools", type=Path, default=default, help="where the other tools are installed")
    add("--all", action="store_true", help="the slow tools on 2,000 files too: half an hour")
    add("--rows", default="1,200,200s,2000,2000s,series", help="which rows (default: all)")
    add("--only", default="", help="only these of the other tools, by name")
    options = parser.parse_args()
    rows = options.rows.split(",")
    only = options.only and ["patcher rewrite", *options.only.split(",")]
    known = tools(options.tools.absolute())
    contestants = {name: tool for name, tool in known.items() if not only or name in only}
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
