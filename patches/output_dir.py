import libcst as cst

from patcher import Patch, syntax


class OutputDir(Patch):
    """Write into --output-dir, and check it first; upstream needs a writable working directory.

    There it loses an epoch before it finds out that it cannot write.
    """

    sites = {"distributed.py": {"main": 1}, "dataparallel.py": {"main": 1}}
    needles = (b"parse_args",)
    origin = "https://github.com/pytorch/examples/issues/655"
    changes = [
        (
            "def main():\n    a = p.parse_args()\n",
            "def main():\n    a = p.parse_args()\n    files.enter_output_dir(a)\n",
        )
    ]
    leaves = ["def main():\n    a = p.parse_known_args()\n", "def main():\n    p.parse_args()\n"]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "files.enter_output_dir")

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef):
        return self.insert_check(updated, "files.enter_output_dir", rank=50, options=True)
