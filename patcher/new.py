"""Begin a patch: its file and its test, both to be filled in, and its line in the series."""

from __future__ import annotations

import ast
import difflib
import keyword
import re
from collections.abc import Iterable, Sequence
from string import Template
from typing import NamedTuple

from patcher.build import store, upstream
from patcher.build.project import Project
from patcher.core.problem import Problem, Problems, UsageError
from patcher.core.unified import lines
from patcher.tree.names import MODULE

SERIES = "patches/__init__.py"
PATCH = Template('''\
import libcst as cst

from patcher import Patch


class $kind(Patch):
    """TODO: what it does and why, in one line that the table of patches shows.

    TODO: what upstream does instead, and what comes of that.  What stays as it is, and why.
    """

    # Where: how many sites in which function.  With any other number the patch is stale.
    sites = {$sites}
    # A statement outside functions with none of these bytes is not visited; `done` needs them, too.
    needles = (b"$needle",)
    # A URL that tells why: an issue, a release note, a page of the documentation.
    origin = ""
    # (before, after): as little code as shows the edit.  Each pair is a test.
    changes = [("TODO: before\\n", "TODO: after\\n")]
    # What looks alike and stays as it is.  Each is a test.
    leaves = ["TODO: look_alike\\n"]

    def done(self, node: cst.CSTNode) -> bool:
        """TODO: whether `node` shows that the edit is made: none does before, one does after."""
        return False

$head
        # Return `updated` itself if there is nothing to do: another node counts as an edit.
        if self.function != "$function" or self.is_done_in(updated):
            return updated
        # TODO: write the edit in place of this; docs/writing-a-patch.md has what you may call.
        self.refuse("patches/$name.py is not written yet", original)
        return updated
''')
TEST = Template('''\
"""TODO: what works with this patch and fails without it, as a sentence."""

import pytest


def serves(distributed, dataparallel, monkeypatch):
    """TODO: call what the patch is for, and assert that it works.

    Both built scripts come as modules; `builds.py` here has helpers to run their functions.  A test
    runs this without the patch, too: it has to fail then.  Look-alikes stand in `leaves` of the
    patch; those that need more than a line of code get a test of their own below this one.
    """
    pytest.fail("tests/patches/test_$name.py is not written yet")
''')
IN_A_FUNCTION = """\
    def leave_FunctionDef(
        self, original: cst.FunctionDef, updated: cst.FunctionDef
    ) -> cst.FunctionDef:"""
OUTSIDE = "    def leave_Call(self, original: cst.Call, updated: cst.Call) -> cst.Call:"


class Begun(NamedTuple):
    """What was written, by path in the project, and what to do now."""

    files: Sequence[str]
    summary: str
    next_steps: Sequence[str]


def begin(
    project: Project, name: str, files: Sequence[str], function: str, topic: str | None = None
) -> Begun:
    """Write patch, test and line of the series, all or nothing.

    Raises UsageError if the name is taken or cannot be one, if there is no such file, function or
    topic, and if the project came with an installed patcher.
    """
    if project.is_installed:
        raise UsageError(f"{project.root}: came with patcher and is not written: use a checkout")
    patch, test = f"patches/{name}.py", f"tests/patches/test_{name}.py"
    _check_name(project, name, [patch, test])
    scripts, problems = upstream.verify(project.upstream)
    if problems:
        raise Problems(problems)
    for file in files:
        _choose("upstream/ has no script", file, scripts)
        _choose(f"upstream/{file} has no function", function, _functions(scripts[file]))
    before = (project.root / SERIES).read_bytes()
    series, line, text = _with_entry(before, name, topic, project.default_series())
    top = function.partition(".")[0]
    words = {
        "name": name,
        "kind": "".join(word.capitalize() for word in name.split("_")),
        "function": function,
        "sites": ", ".join(f'"{file}": {{"{function}": 1}}' for file in dict.fromkeys(files)),
        "needle": f"class {top}" if "." in function else f"def {top}(",
        "head": IN_A_FUNCTION,
    }
    if function == MODULE:
        words |= {"needle": "add_argument(", "head": OUTSIDE}
    ending = "\r\n" if b"\r\n" in before else "\n"
    made = {patch: PATCH.substitute(words), test: TEST.substitute(words)}
    content = {path: source.replace("\n", ending).encode() for path, source in made.items()}

    def refuse(*_: object) -> list[Problem]:
        now = (project.root / SERIES).read_bytes()
        return [] if now == before else [Problem("changed while this ran", file=SERIES)]

    written = store.write(project.root, {**content, SERIES: series}, {}, refuse, "new")
    steps = [
        f"1. Fill in {patch}; docs/writing-a-patch.md tells how.",
        f"2. `python -m patcher apply`, and `python -m patcher diff {name}` shows what it does.",
        f"3. Fill in {test}, then `make golden readme` and `make lint test`.",
    ]
    added = f"wrote {patch} and {test}; added {SERIES}:{line}: {text}"
    return Begun(written, added, steps)


def _check_name(project: Project, name: str, paths: Iterable[str]) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise UsageError(f"expected a name such as print_freq, found {name!r}")
    taken = [path for path in paths if (project.root / path).exists()]
    taken += [SERIES for series in project.all_series().values() if name in series][:1]
    taken += [f"patches/{name}/"] if (project.patches / name).is_dir() else []
    if taken:
        raise UsageError(f"there is a {name} already: {', '.join(taken)}; choose another name")


def _choose(message: str, wanted: str, known: Iterable[str]) -> None:
    """Raise UsageError, with what comes nearest, if `wanted` is not among `known`."""
    names = list(known)
    if wanted not in names:
        near = difflib.get_close_matches(wanted, names, n=1)
        has = f"did you mean {near[0]}?" if near else f"it has: {', '.join(names)}"
        raise UsageError(f"{message} {wanted!r}; {has}")


def _functions(source: bytes) -> list[str]:
    """The functions of a script by their qualified names, and `<module>`."""

    def visit(body: Sequence[ast.stmt], scope: str) -> Iterable[str]:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                if isinstance(node, ast.FunctionDef):
                    yield scope + node.name
                yield from visit(node.body, f"{scope}{node.name}.")

    return [*visit(ast.parse(source).body, ""), MODULE]


def _with_entry(
    source: bytes, name: str, topic: str | None, default: str
) -> tuple[bytes, int, str]:
    """The series file with an entry at the end of a topic, the line of the entry, and its text."""
    assigned: dict[str, ast.expr] = {}
    for node in ast.parse(source).body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            assigned[_id(target)] = node.value
    topics = [key for key, node in assigned.items() if key != "SERIES" and _is_topic(node)]
    if topic:
        _choose(f"{SERIES} has no topic", topic, topics)
    value: ast.expr | None = assigned[topic] if topic else _default(assigned["SERIES"], default)
    while not isinstance(value, ast.Dict):  # a sum of topics ends with its last one
        value = value.right if isinstance(value, ast.BinOp) else assigned.get(_id(value))
        if value is None:
            message = "its series do not end with a mapping `{...}`: name a topic with --topic"
            raise UsageError(message, file=SERIES)
    text = f'"{name}": {{}}'
    close = _offset(source, value.end_lineno, value.end_col_offset) - 1
    last = value.values[-1] if value.values else None
    end = _offset(source, last.end_lineno, last.end_col_offset) if last else close
    has_comma = b"," in re.sub(rb"#.*", b"", source[end:close])
    comma = b"" if last is None or has_comma else b","
    start = source.rfind(b"\n", 0, close) + 1
    if value.lineno != value.end_lineno and not source[start:close].strip():
        newline = b"\r\n" if b"\r\n" in source else b"\n"
        made = source[:end] + comma + source[end:start] + b"    " + text.encode() + b"," + newline
        at, rest, text = len(made) - len(newline), source[start:], f"{text},"
    else:
        made = source[:end] + (comma or (b"," if last else b"")) + (b" " if last else b"")
        made += text.encode()
        at, rest = len(made), source[close:]
    return made + rest, made.count(b"\n", 0, at) + 1, text


def _is_topic(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp) or (isinstance(node, ast.Dict) and bool(node.keys))


def _default(series: ast.expr, name: str) -> ast.expr | None:
    pairs = zip(series.keys, series.values) if isinstance(series, ast.Dict) else ()
    keyed = ((key, value) for key, value in pairs if isinstance(key, ast.Constant))
    return next((value for key, value in keyed if key.value == name), None)


def _id(node: ast.expr | None) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _offset(source: bytes, line: int | None, column: int | None) -> int:
    return sum(map(len, lines(source)[: (line or 1) - 1])) + (column or 0)
