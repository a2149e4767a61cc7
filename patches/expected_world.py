import libcst as cst

from patcher import Patch, syntax


class ExpectedWorld(Patch):
    """Let --expect-world N refuse another number of processes; hosts may miss each other.

    If the second host gets another endpoint, or --nnodes=1, each host is a job of its own: both
    train, and overwrite each other's checkpoints. The check comes before any process waits.
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

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef):
        return self.insert_check(updated, "launch.check_world", rank=20, options=True)
