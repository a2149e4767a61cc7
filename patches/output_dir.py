import libcst as cst

from patcher import Patch, syntax


class OutputDir(Patch):
    """Write where --output-dir says, and find out that this cannot be written to before training starts.

    Upstream writes into the working directory, and an epoch is lost where that turns out to be read-only.
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

    def leave_FunctionDef(
        self, original: cst.FunctionDef, updated: cst.FunctionDef
    ) -> cst.FunctionDef:
        return self.insert_check(updated, "files.enter_output_dir", rank=50, options=True)
