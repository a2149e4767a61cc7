import libcst as cst

from patcher import Patch, Place, syntax


class ExportedWeights(Patch):
    """Write the best weights alone, as safetensors, with --export-weights.

    A checkpoint is three times as large, and its format is for torch alone.
    """

    sites = {"distributed.py": {"main_worker": 1}, "dataparallel.py": {"main_worker": 1}}
    needles = (b"def main_worker(",)
    origin = "https://github.com/huggingface/safetensors"
    needs = ("output_dir", "whole_files", "resume")
    changes = [
        (
            "def main_worker(o):\n    for n in range(o.epochs):\n"
            "        save_checkpoint(s, best)\n",
            "def main_worker(o):\n    for n in range(o.epochs):\n"
            "        save_checkpoint(s, best)\n        exporting.best(best, o)\n",
        )
    ]
    leaves = ["def f(o):\n    for n in range(o.epochs):\n        save_checkpoint(s, best)\n"]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "exporting.best")

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef):
        if self.function != "main_worker" or self.is_done_in(updated):
            return updated
        saves = (n for n in syntax.descendants(updated) if syntax.is_call(n, "save_checkpoint"))
        is_best = next((save.args[1].value for save in saves if len(save.args) > 1), None)
        if not isinstance(is_best, cst.Name):
            self.refuse("main_worker does not call `save_checkpoint(state, is_best)`", original)
        code = f"{self.add_options('exporting')}.best({is_best.value}, {self.args})\n"
        return self.insert(updated, Place.SAVED, code, rank=20)
