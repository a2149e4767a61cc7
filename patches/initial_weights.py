import libcst as cst

from patcher import Patch, Place, places, syntax


class InitialWeights(Patch):
    """Start from the weights in a file with --init; upstream can only load those of torchvision.

    A head for other classes is new, and position embeddings are interpolated for another size of
    the images: that is how a ViT is tuned at 384 pixels. A run may also resume at another size.
    """

    sites = {"distributed.py": {"main_worker": 1}, "dataparallel.py": {"main_worker": 1}}
    needles = places.MAKES_OPTIMIZER
    origin = "https://arxiv.org/abs/2010.11929"
    needs = ("model_for_data", "resume")
    changes = [
        (
            "def f(o):\n    sgd = torch.optim.SGD(net.parameters(), 1)\n",
            "def f(o):\n    sgd = torch.optim.SGD(net.parameters(), 1)\n    initial.load(net, o)\n",
        )
    ]
    leaves = [
        "def f(o):\n    sgd = optim.SGD(net.parameters(), 1)\n",
        "def f(o):\n    net.load_state_dict(torch.load(o.init))\n",
    ]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "initial.load")

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef):
        made = places.optimizer_in(updated)
        if made is None or self.is_done_in(updated):
            return updated
        call = f"{self.add_options('initial')}.load({made[0]}, {self.args})\n"
        return self.insert(updated, Place.OPTIMIZER, call, rank=10)
