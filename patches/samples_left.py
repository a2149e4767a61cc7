import libcst as cst

from patcher import Patch, places, syntax


class SamplesLeft(Patch):
    """Draw order and augmentation from seed and epoch, so a resumed epoch does what is left.

    Upstream draws them from generators in the training process and in each worker, and nothing can
    put those back. Its distributed order is that of seed 0, whatever --seed says.
    """

    sites = {"distributed.py": {"main_worker": 1}, "dataparallel.py": {"main_worker": 1}}
    needles = (b"DataLoader(",)
    origin = "https://github.com/pytorch/examples/issues/1194"
    needs = ("resume",)
    changes = [
        (
            "def f(o):\n    d = DataLoader(x, sampler=s)\n    e = DataLoader(y)\n",
            "def f(o):\n"
            "    d = DataLoader(seeds.SeededImages(x), sampler=seeds.SamplesLeft(s, run))\n"
            "    e = DataLoader(y)\n",
        ),
        (
            "def f(o):\n    d = DataLoader(x, shuffle=True)\n",
            "def f(o):\n"
            "    d = DataLoader(seeds.SeededImages(x), sampler=seeds.shuffled(x, run))\n",
        ),
    ]
    leaves = [
        "def f(o):\n    d = DataLoader(x, shuffle=False)\n    e = DataLoader(y, shuffle=True)\n"
    ]

    def __init__(self):
        super().__init__()
        self.training: cst.Call | None = None  # the training loader of the function at hand

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "seeds.SeededImages")

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        if "." not in self.function:  # a nested function makes no loader
            self.training = places.training_loader(node)

    def leave_Call(self, original: cst.Call, updated: cst.Call):
        if original is not self.training or not updated.args:
            return updated
        images = updated.args[0]
        if not isinstance(images.value, cst.Name):
            return updated
        shuffle, sampler = (syntax.argument(updated, name) for name in ("shuffle", "sampler"))
        if sampler is not None:
            old, order = (
                sampler,
                f"seeds.SamplesLeft({self.module.code_for_node(sampler.value)}, run)",
            )
        elif shuffle is not None and syntax.is_name(shuffle.value, "True"):
            old, order = shuffle, f"seeds.shuffled({images.value.value}, run)"
        else:
            return updated
        seeded = syntax.wrapped(f"{self.support('seeds')}.SeededImages", images.value)
        left = cst.parse_expression(order)
        new = {
            images: images.with_changes(value=seeded),
            old: old.with_changes(keyword=cst.Name("sampler"), value=left),
        }
        return updated.with_changes(args=[new.get(arg, arg) for arg in updated.args])
