import libcst as cst

from patcher import Patch, Place, syntax


class ProfiledSteps(Patch):
    """Record N steps with torch's profiler, with --profile; upstream does not say what takes time.

    The first steps, which are slower than all others, are left out.
    """

    sites = {"distributed.py": {"train": 1}, "dataparallel.py": {"train": 1}}
    needles = (b"def train(",)
    origin = "https://docs.pytorch.org/tutorials/recipes/recipes/profiler_recipe.html"
    needs = ("output_dir", "whole_files")
    changes = [
        (
            "def train(d, o):\n    for i, x in enumerate(d):\n        sgd.step()\n",
            "def train(d, o):\n    profiling.begin(o)\n    for i, x in enumerate(d):\n"
            "        sgd.step()\n        profiling.next_step()\n",
        )
    ]
    leaves = ["def validate(d, o):\n    for i, x in enumerate(d):\n        f(x)\n"]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "profiling.begin") or syntax.is_call(
            node, "profiling.next_step"
        )

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef):
        if self.function != "train" or self.is_done_in(updated):
            return updated
        begin = f"{self.add_options('profiling')}.begin({self.args})\n"
        updated = self.insert(updated, Place.BEFORE_LOOP, begin, rank=50)
        return self.insert(updated, Place.LAST_IN_LOOP, "profiling.next_step()\n", rank=30)
