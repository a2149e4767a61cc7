import libcst as cst

from patcher import Patch, places


class ExpectedWorld(Patch):
    """Let --expect-world N end a job of another number of processes, before they look for each other.

    Where the second host is given another endpoint, or --nnodes=1, each host forms a world of its own: they train
    independently, and write one over the other's checkpoints.
    """

    sites = {"distributed.py": {"main": 1}}
    needles = (b"parse_args",)
    origin = "https://github.com/pytorch/pytorch/issues/76069"
    changes = [
        (
            "import os, signal, socket, sys, time\np.add_argument('-x')\n"
            "def main():\n    o = p.parse_args()\n    go(o)\n",
            "import os, signal, socket, sys, time\np.add_argument('-x')\n...\n"
            "def main():\n    o = p.parse_args()\n    check_expected_world(o)\n    go(o)\n",
        ),
    ]
    leaves = [
        "def main():\n    go(p.parse_args())\n",
        "p.add_argument('--expect-world')\ndef main():\n    o = p.parse_args()\n",
    ]

    def done(self, node: cst.CSTNode) -> bool:
        return places.called(node) == "check_expected_world"

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef) -> cst.FunctionDef:
        if any(map(self.done, updated.body.body)) or places.parsing([updated]) is None or self.has_function("fail"):
            return updated
        name = "check_expected_world"
        if self.has_option("--expect-world") or not self.insert_check(name, "expected_world.py"):
            return updated
        self.insert_option("--expect-world", "expected_world.py", self.parser_name())
        return updated.with_changes()  # the call comes into it with the other checks
