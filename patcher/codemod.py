r"""Any patch, and any series, as a command of LibCST's own tool.

    python -m libcst.tool codemod --no-format -x patcher.codemod.ReshapeTopK train.py
    python -m libcst.tool codemod --no-format -x patcher.codemod.guide \
        --set configurable_gpus.gpus=0,1 train.py

Without `--no-format` the tool runs the formatter of its configuration over the whole file.
A name is that of a patch class or of a series.  Classes are made when they are asked for, from
the project that `patcher` itself would use.  Sites are not counted here: a script that is not ours
may hold any number, so there is only a warning when it is none.  A script that a patch refuses is
skipped as a whole.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import libcst as cst
from libcst.codemod import CodemodCommand, CodemodContext, SkipFile

from patcher.build.project import Project
from patcher.core.draft import Draft, Refused
from patcher.core.engine import finish
from patcher.core.single_pass import Printer, apply_once


class SeriesCommand(CodemodCommand):
    """Runs patches one after the other over a module."""

    project: Project
    series: Mapping[str, Mapping[str, object]] = {}

    def __init__(self, context: CodemodContext, sets: Sequence[str] | None = None):
        super().__init__(context)
        self.patches = self.project.configured(self.series, sets or ())

    @staticmethod
    def add_args(arg_parser: argparse.ArgumentParser) -> None:
        arg_parser.add_argument("--set", dest="sets", action="append", metavar="PATCH.OPTION=VALUE")

    def transform_module_impl(self, tree: cst.Module) -> cst.Module:
        name = Path(self.context.filename or "").name
        # One of our scripts is for the patches that name it, any other script for all of them.
        patches = [patch for patch in self.patches if name in patch.sites] or self.patches
        printer, draft, edited, hits = Printer(), Draft(tree.bytes, self.project.support()), tree, 0
        for patch in patches:
            run = patch.fresh()
            try:
                edited = apply_once(edited, run, printer, draft)
            except Refused as refused:
                raise SkipFile(f"{patch.slug()}: {refused.why}") from None
            hits += len(run.hits)
        if not hits:
            self.warn("nothing to edit")
            return tree
        if draft.reached():
            self.warn("imports support: copy patches/support/ to the folder of the script")
        return finish(tree, edited, draft)


def __getattr__(name: str) -> type[SeriesCommand]:
    project = Project.find()
    series = project.all_series()
    if name in series:
        members, text = series[name], f"The series {name}."
    else:
        patches = project.configured({name: {} for members in series.values() for name in members})
        found = next((patch for patch in patches if type(patch).__name__ == name), None)
        if found is None:
            raise AttributeError(f"there is no series and no patch {name!r}")
        members, text = {found.slug(): {}}, found.summary()
    body = {"project": project, "series": members, "DESCRIPTION": text, "__module__": __name__}
    command = type(name, (SeriesCommand,), body)
    globals()[name] = command  # libcst.tool hands commands to other processes by name
    return command
