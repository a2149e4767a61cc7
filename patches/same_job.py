import libcst as cst

from patcher import Patch, syntax


class SameJob(Patch):
    """Let all ranks compare options, data, batch and versions before they train: what differs ends the job in one line.

    Each works these out for itself.  Hosts with another number of processes, another learning rate or
    another data set would hang, or train something that nobody has asked for.
    """

    sites = {"distributed.py": {"main": 1}}
    needles = (b"parse_args",)
    origin = "https://github.com/pytorch/pytorch/issues/76069"
    needs = ("any_launcher", "any_device")
    changes = [
        (
            "def main():\n    o = p.parse_args()\n",
            "def main():\n    o = p.parse_args()\n    job.meet(o)\n",
        )
    ]
    leaves = [
        "def main():\n    go(p.parse_args())\n",
        "def main():\n    o, _ = p.parse_known_args()\n",
    ]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "job.meet")

    def leave_FunctionDef(
        self, original: cst.FunctionDef, updated: cst.FunctionDef
    ) -> cst.FunctionDef:
        return self.insert_check(updated, "job.meet", rank=80)
