import libcst as cst

from patcher import Patch, Place, places, syntax


class TopologyLine(Patch):
    """Print what this job is, in one line; mistakes show in its results days later otherwise.

    It has hosts, processes, device, batch, learning rate and images: a second node may be a job of
    its own, a batch mean something else. Ranks that see other images end the job.
    """

    sites = {"distributed.py": {"main_worker": 1}, "dataparallel.py": {"main_worker": 1}}
    needles = (*places.MAKES_OPTIMIZER, b"print_topology")
    origin = "https://github.com/pytorch/pytorch/issues/137402"
    changes = [
        (
            "def f(o):\n    sgd = torch.optim.SGD(net.parameters(), 1)\n"
            "    a = DataLoader(x)\n    b = DataLoader(y)\n    train(a, net)\n",
            "def f(o):\n    sgd = torch.optim.SGD(net.parameters(), 1)\n"
            "    a = DataLoader(x)\n    b = DataLoader(y)\n"
            "    launch.print_topology(net, a, b, o)\n    train(a, net)\n",
        )
    ]
    leaves = ["def f(args):\n    torch.optim.SGD(p)\n", "def f(args):\n    optimizer = Adam(p)\n"]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "launch.print_topology")

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef):
        made = places.optimizer_in(updated)
        if made is None or self.is_done_in(updated):
            return updated
        loaders = places.loaders_in(updated)
        if loaders is None:
            self.refuse("it is not clear which loader trains, and which one validates", original)
        given = ", ".join([made[0], *loaders, self.args])
        line = f"{self.support('launch')}.print_topology({given})\n"
        return self.insert(updated, Place.LOADERS, line, rank=20)
