"""A new patch, with a module of its own, goes anywhere into a series."""

import ast

import pytest
from conftest import forget_patches

from patcher.build import build
from patcher.build.project import Project, Request
from patcher.core.problem import Problem

PATCH = '''\
import libcst as cst

from patcher import Patch, Place, places

STOP = "if {step} + 1 >= {args}.max_steps:\\n    break\\n"


class StopAfter(Patch):
    """End each epoch after --max-steps steps, to try a script out."""

    sites = {name: {"train": 1} for name in ("distributed.py", "dataparallel.py")}
    needles = (b"def train(",)

    def done(self, node: cst.CSTNode) -> bool:
        return isinstance(node, cst.Attribute) and node.attr.value == "max_steps"

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef):
        if self.function != "train" or self.is_done_in(updated):
            return updated
        self.add_options("limits")
        stop = STOP.format(step=places.training_names(updated)["step"], args=self.args)
        return self.insert(updated, Place.LAST_IN_LOOP, stop, rank=90)
'''
LIMITS = '''\
"""How far a run goes."""


def add_options(parser):
    parser.add_argument("--max-steps", default=float("inf"), type=float, metavar="N")
'''
FIRST, MIDDLE, LAST = "local_rank_from_env", "seeded_run", None


@pytest.fixture
def extended(project):
    """Puts `stop_after` into `standard` before another patch, or at its end; plans a build."""
    text = (project / "patches/__init__.py").read_text()
    names = list(Project(project).series("standard"))
    (project / "patches/support/limits.py").write_text(LIMITS)

    def extend(before: str | None, patch: str = PATCH) -> build.Plan:
        at = names.index(before) if before else len(names)
        order = [*names[:at], "stop_after", *names[at:]]
        line = f"standard = {{name: standard.get(name, {{}}) for name in {order}}}\n"
        old = "standard = guide | start | numbers | data | restart | record\n"
        assert old in text
        (project / "patches/__init__.py").write_text(text.replace(old, old + line))
        (project / "patches/stop_after.py").write_text(patch)
        forget_patches()
        return build.plan(Project(project), Request("standard"))

    return extend


def test_new_patch_is_clean_wherever_it_stands_and_makes_the_same_build(extended):
    plans = [extended(before) for before in (FIRST, MIDDLE, LAST)]
    places = [[patch.slug() for patch in plan.patches].index("stop_after") for plan in plans]
    assert places[0] == 0 < places[1] < places[2] == len(plans[0].patches) - 1
    for plan in plans:
        assert plan.problems == []
        outcomes = [outcome for result in plan.rendered for outcome in result.outcomes]
        assert {outcome.verdict.value for outcome in outcomes} == {"clean"}
        scripts = [result.after for result in plan.rendered]
        assert scripts == [result.after for result in plans[0].rendered]
        assert "support/limits.py" in plan.files


def test_its_statement_ends_the_training_loop_and_its_option_is_there(extended):
    for result in extended(MIDDLE).rendered:
        tree = ast.parse(result.after)
        (train,) = (
            node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "train"
        )
        (loop,) = (node for node in train.body if isinstance(node, ast.For))
        lines = [ast.unparse(line) for line in loop.body]
        assert lines[-1] == "if i + 1 >= args.max_steps:\n    break"
        assert "finite.check(i)" in lines and "run.reached(epoch, i + 1, progress.meters)" in lines
        loops = [node for node in tree.body if isinstance(node, ast.For)]
        assert [ast.unparse(loop.body) for loop in loops] == ["module.add_options(parser)"]
        assert "limits" in ast.unparse(loops[0].iter)
        imports = next(node.body[0] for node in tree.body if isinstance(node, ast.Try))
        assert "limits" in [alias.name for alias in imports.names]


def test_patch_may_say_that_it_comes_after_another_without_needing_it(extended):
    patch = PATCH.replace("    needles", '    after = ("finite_loss", "nosuch")\n    needles')
    assert extended(LAST, patch).problems == []
    with pytest.raises(Problem, match="stop_after has to come after finite_loss"):
        extended(FIRST, patch)
