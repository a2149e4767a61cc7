import libcst as cst

from patcher import Patch, Place, places, syntax


class CompiledModel(Patch):
    """Let --compile have torch compile the model, under the same keys; upstream cannot.

    It is off by default: the first step of resnet18 takes half a minute on the CPU, and later ones
    were no faster there. If torch has no compiler, the job ends in one line before the first step.
    """

    sites = {"distributed.py": {"main_worker": 1}, "dataparallel.py": {"main_worker": 1}}
    needles = places.MAKES_OPTIMIZER
    origin = "https://docs.pytorch.org/docs/stable/generated/torch.compile.html"
    changes = [
        (
            "def f(o):\n    sgd = torch.optim.SGD(net.parameters(), 1)\n",
            "def f(o):\n    sgd = torch.optim.SGD(net.parameters(), 1)\n"
            "    compiling.begin(net, o)\n",
        )
    ]
    leaves = ["def f(o):\n    net = torch.compile(net)\n"]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "compiling.begin")

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef):
        made = places.optimizer_in(updated)
        if made is None or self.is_done_in(updated):
            return updated
        begin = f"{self.add_options('compiling')}.begin({made[0]}, {self.args})\n"
        return self.insert(updated, Place.OPTIMIZER, begin, rank=40)
