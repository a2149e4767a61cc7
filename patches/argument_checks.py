import libcst as cst

from patcher import Patch, syntax


class ArgumentChecks(Patch):
    """Refuse numbers that make no sense before anything starts; upstream crashes inside torch.

    It does so with `-b 0` or `--print-freq 0`. It hangs with `--workers 3000000000`, and does
    nothing, with status 0, with `--epochs -1` or `--start-epoch 9 --epochs 2`.
    """

    sites = {"distributed.py": {"main": 1}, "dataparallel.py": {"main": 1}}
    needles = (b"parse_args",)
    origin = "https://docs.python.org/3/library/argparse.html#exiting-methods"
    changes = [
        (
            "def main():\n    o = p.parse_args()\n",
            "def main():\n    o = p.parse_args()\n    arguments.check(o)\n",
        )
    ]
    leaves = [
        "def main():\n    go(p.parse_args())\n",
        "def main():\n    o, _ = p.parse_known_args()\n",
    ]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "arguments.check")

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef):
        return self.insert_check(updated, "arguments.check", rank=10)
