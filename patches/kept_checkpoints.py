import libcst as cst

from patcher import Patch, Place, places, syntax


class KeptCheckpoints(Patch):
    """Keep the checkpoints of the last N epochs with --keep; upstream has the last and the best.

    To average some of them, or to see when a run went wrong, one needs those before.
    """

    sites = {"distributed.py": {"main_worker": 1}, "dataparallel.py": {"main_worker": 1}}
    needles = (b"def main_worker(",)
    origin = "https://arxiv.org/abs/1803.05407"
    needs = ("output_dir", "whole_files", "resume")
    changes = [
        (
            "def main_worker(o):\n    for n in range(o.epochs):\n"
            "        save_checkpoint(s, best)\n",
            "def main_worker(o):\n    for n in range(o.epochs):\n"
            "        save_checkpoint(s, best)\n"
            "        output_folder.keep(n + 1, o.keep)\n",
        )
    ]
    leaves = ["def f(o):\n    for n in range(o.epochs):\n        save_checkpoint(s, best)\n"]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "output_folder.keep")

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef):
        if self.function != "main_worker" or self.is_done_in(updated):
            return updated
        epoch = places.loop_variable(updated)
        if epoch is None:
            self.refuse("main_worker has no loop over epochs", original)
        code = f"{self.add_options('output_folder')}.keep({epoch} + 1, {self.args}.keep)\n"
        return self.insert(updated, Place.SAVED, code, rank=10)
