import libcst as cst

from patcher import Patch, syntax


class ExpectedWorld(Patch):
    """Let --expect-world N end a job of another number of processes, before they look for each other.

    If the second host is given another endpoint, or --nnodes=1, each host forms a world of its own: they
    train independently, and overwrite each other's checkpoints.
    """

    sites = {"distributed.py": {"main": 1}}
    needles = (b"parse_args",)
    origin = "https://github.com/pytorch/pytorch/issues/76069"
    changes = [
        (
            "def main():\n    o = p.parse_args()\n",
            "def main():\n    o = p.parse_args()\n    launch.check_world(o)\n",
        )
    ]
    leaves = [
        "def main():\n    go(p.parse_args())\n",
        "def main():\n    o, _ = p.parse_known_args()\n",
    ]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "launch.check_world")

    def leave_FunctionDef(
        self, original: cst.FunctionDef, updated: cst.FunctionDef
    ) -> cst.FunctionDef:
        return self.insert_check(updated, "launch.check_world", rank=20, options=True)
