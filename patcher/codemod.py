"""Any patch, and any series, as a command of LibCST's own tool.

    python -m libcst.tool codemod -x patcher.codemod.ReshapeTopK train.py
    python -m libcst.tool codemod -x patcher.codemod.standard train.py

A name is that of a patch class or of a series.  Classes are made when they are asked for, from
the project that `patcher` itself would use.  There are no sites here: a script that is not ours
may hold any number, so what is counted is only warned about when it is nothing.
"""

from __future__ import annotations

import libcst as cst
from libcst.codemod import CodemodCommand, CodemodContext

from patcher.engine import Printer, apply_once
from patcher.patch import Patch
from patcher.project import Project


class SeriesCommand(CodemodCommand):
    """Runs patches one after the other over a module."""

    patches: tuple[Patch, ...] = ()

    def __init__(self, context: CodemodContext):
        super().__init__(context)

    def transform_module_impl(self, tree: cst.Module) -> cst.Module:
        printer, hits = Printer(), 0
        for patch in self.patches:
            run = patch.fresh()
            tree = apply_once(tree, run, printer)
            hits += len(run.hits)
        if not hits:
            self.warn("nothing to edit")
        return tree


def __getattr__(name: str) -> type[SeriesCommand]:
    project = Project.find()
    series = project.all_series()
    if name in series:
        patches, text = tuple(project.patches_named(series[name])), f"The series {name}."
    else:
        names = dict.fromkeys(patch for members in series.values() for patch in members)
        patches = tuple(
            patch for patch in project.patches_named({n: {} for n in names}) if type(patch).__name__ == name
        )
        if not patches:
            raise AttributeError(f"there is no series and no patch {name!r}")
        text = patches[0].summary()
    command = type(name, (SeriesCommand,), {"patches": patches, "DESCRIPTION": text, "__module__": __name__})
    globals()[name] = command  # libcst.tool hands commands to other processes by name
    return command
