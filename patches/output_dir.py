import libcst as cst

from patcher import Patch, places, syntax


class OutputDir(Patch):
    """Write where --output-dir says, and find out that this cannot be written to before training starts.

    Upstream writes into the working directory, and an epoch is lost where that turns out to be read-only.
    """

    sites = {"distributed.py": {"main": 1}, "dataparallel.py": {"main": 1}}
    needles = (b"parse_args",)
    origin = "https://github.com/pytorch/examples/issues/655"
    changes = [
        (
            "import glob, os, signal, socket, sys, tempfile, time\n"
            "p.add_argument('-x')\ndef main():\n    a = p.parse_args()\n",
            "import glob, os, signal, socket, sys, tempfile, time\n"
            "p.add_argument('-x')\n...\n"
            "def main():\n    a = in_output_dir(p.parse_args())\n",
        ),
    ]
    leaves = ["def main():\n    a = p.parse_known_args()\n", "def main():\n    p.parse_args()\n"]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "in_output_dir")

    def leave_Assign(self, original: cst.Assign, updated: cst.Assign) -> cst.Assign:
        parsed = places.parse_args_call(updated.value)
        if parsed is None or places.innermost(updated.value, "in_output_dir"):
            return updated
        if self.has_option("--output-dir") or self.has_function("in_output_dir", "fail"):
            return updated
        self.insert_option("--output-dir", "output_dir.py", parsed.func.value.value)
        self.insert_function("in_output_dir", "output_dir.py")
        return updated.with_changes(value=syntax.wrapped("in_output_dir", updated.value))
