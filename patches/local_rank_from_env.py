import libcst as cst

from patcher import Patch, flag, syntax


class LocalRankFromEnv(Patch):
    """Take the default of --local_rank from LOCAL_RANK, where torchrun puts it.

    torchrun no longer passes `--local_rank`; with upstream's default each process takes itself for
    rank -1. As in the vendor's guide the variable has to be set, so `--help` and a plain `python`
    end in a KeyError; `fallback` keeps the old default for them.
    """

    sites = {"distributed.py": {"<module>": 1}}
    needles = (b"local_rank", b"local-rank")
    origin = "https://pytorch.org/docs/stable/elastic/run.html"
    changes = [
        (
            "p.add_argument('--local_rank', default=-1, type=int)\n",
            "p.add_argument('--local_rank', default=int(os.environ[\"LOCAL_RANK\"]), type=int)\n",
        ),
        (
            "import os as so\np.add_argument('--local-rank', default=0)\n",
            "import os as so\n"
            "p.add_argument('--local-rank', default=int(so.environ[\"LOCAL_RANK\"]))\n",
        ),
    ]
    leaves = [
        'parser.add_argument("--rank", default=-1, type=int)\n',
        'parser.add_argument("--local_rank", default=rank, type=int)\n',
        'parser.add_argument("--ranks", default=1, help="--local_rank")\n',
    ]

    def __init__(self, fallback: bool = False):
        self.fallback = flag(fallback)
        super().__init__(fallback=self.fallback)

    def done(self, node: cst.CSTNode) -> bool:
        return _adds_local_rank(node) and any(
            syntax.string(part) == "LOCAL_RANK" for part in syntax.descendants(node)
        )

    def leave_Call(self, original: cst.Call, updated: cst.Call):
        default = syntax.argument(updated, "default") if _adds_local_rank(updated) else None
        if default is None or syntax.integer(default.value) is None:
            return updated
        environ = f"{self.module_name('os')}.environ"
        old = self.module.code_for_node(default.value)
        found = f'.get("LOCAL_RANK", {old})' if self.fallback else '["LOCAL_RANK"]'
        new = default.with_changes(value=cst.parse_expression(f"int({environ}{found})"))
        return updated.with_changes(args=[new if arg is default else arg for arg in updated.args])


def _adds_local_rank(node: cst.CSTNode) -> bool:
    return syntax.adds_option(node, "--local_rank", "--local-rank")
