import libcst as cst

from patcher import Patch, places, syntax
from patcher.places import Place


class TopologyLine(Patch):
    """Say at the start, in one line, what this job is: hosts, processes, device, batch, learning rate, workers.

    Otherwise a second node that forms a world of its own, or a batch that means something else than
    was thought, shows in the results, days later.
    """

    sites = {"distributed.py": {"main_worker": 1}, "dataparallel.py": {"main_worker": 1}}
    needles = (b"torch.optim", b"print_topology")
    origin = "https://github.com/pytorch/pytorch/issues/137402"
    changes = [
        (
            "def f(o):\n    sgd = torch.optim.SGD(net.parameters(), 1)\n    go()\n",
            "def f(o):\n    sgd = torch.optim.SGD(net.parameters(), 1)\n    launch.print_topology(net, o)\n    go()\n",
        ),
    ]
    leaves = ["def f(args):\n    torch.optim.SGD(p)\n", "def f(args):\n    optimizer = Adam(p)\n"]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "launch.print_topology")

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef) -> cst.FunctionDef:
        made = places.optimizer_in(updated)
        if made is None or self.is_done_in(updated):
            return updated
        line = f"{self.support('launch')}.print_topology({made[0]}, {self.args})\n"
        return self.insert(updated, Place.OPTIMIZER, line, rank=10)
