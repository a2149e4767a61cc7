import libcst as cst

from patcher import Patch, places, syntax


class SamplesLeft(Patch):
    """Let order and augmentation follow from seed and epoch alone, so that a resumed epoch goes on with what is left.

    Upstream draws them from generators in the training process and in each worker, which nothing can put back
    to where they were, and its distributed order is that of seed 0, whatever --seed says.
    """

    sites = {"distributed.py": {"main_worker": 1}, "dataparallel.py": {"main_worker": 1}}
    needles = (b"DataLoader(",)
    origin = "https://github.com/pytorch/examples/issues/1194"
    needs = ("resume",)
    changes = [
        (
            "def f(o):\n    d = DataLoader(images, sampler=s)\n    e = DataLoader(other)\n",
            "def f(o):\n    d = DataLoader(seeds.SeededImages(images), sampler=seeds.SamplesLeft(s, run))\n"
            "    e = DataLoader(other)\n",
        ),
        (
            "def f(o):\n    d = data.DataLoader(images, shuffle=True)\n",
            "def f(o):\n    d = data.DataLoader(seeds.SeededImages(images), sampler=seeds.shuffled(images, run))\n",
        ),
    ]
    leaves = [
        "def f(o):\n    d = DataLoader(images, shuffle=False)\n    e = DataLoader(other, shuffle=True)\n"
    ]

    def __init__(self):
        super().__init__()
        self.training = None  # the loader of the function at hand that is trained with

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "seeds.SeededImages")

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        if "." not in self.function:  # a function in it makes no loader
            self.training = places.training_loader(node)

    def leave_Call(self, original: cst.Call, updated: cst.Call) -> cst.Call:
        if original is not self.training or not updated.args:
            return updated
        images, shuffle, sampler = (
            updated.args[0],
            *(syntax.argument(updated, name) for name in ("shuffle", "sampler")),
        )
        if not isinstance(images.value, cst.Name):
            return updated
        if sampler is not None:
            old, code = (
                sampler,
                f"seeds.SamplesLeft({self.module.code_for_node(sampler.value)}, run)",
            )
        elif shuffle is not None and syntax.is_name(shuffle.value, "True"):
            old, code = shuffle, f"seeds.shuffled({images.value.value}, run)"
        else:
            return updated
        self.support("seeds")
        new = {
            id(images): images.with_changes(
                value=syntax.wrapped("seeds.SeededImages", images.value)
            ),
            id(old): old.with_changes(
                keyword=cst.Name("sampler"), value=cst.parse_expression(code)
            ),
        }
        return updated.with_changes(args=[new.get(id(arg), arg) for arg in updated.args])
