import libcst as cst

from patcher import Patch, Place, places, syntax


class DdpAdvice(Patch):
    """Say in one line that distributed.py is faster if DataParallel has more than one GPU.

    One process drives all GPUs, copies the weights to each of them in each step, and gathers the
    gradients on the first. The line has the command that does the same with a process for each GPU.
    """

    sites = {"dataparallel.py": {"main_worker": 1}}
    needles = (*places.MAKES_OPTIMIZER, b"recommend_ddp")
    origin = "https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html"
    changes = [
        (
            "def f(o):\n    sgd = torch.optim.SGD(net.parameters(), 1)\n"
            "    a = DataLoader(x)\n    b = DataLoader(y)\n    train(a, net)\n",
            "def f(o):\n    sgd = torch.optim.SGD(net.parameters(), 1)\n"
            "    a = DataLoader(x)\n    b = DataLoader(y)\n"
            "    advice.recommend_ddp(net)\n    train(a, net)\n",
        )
    ]
    leaves = ["def f(args):\n    torch.optim.SGD(p)\n", "def f(args):\n    optimizer = Adam(p)\n"]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "advice.recommend_ddp")

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef):
        made = places.optimizer_in(updated)
        if made is None or self.is_done_in(updated):
            return updated
        line = f"{self.support('advice')}.recommend_ddp({made[0]})\n"
        return self.insert(updated, Place.LOADERS, line, rank=30)
