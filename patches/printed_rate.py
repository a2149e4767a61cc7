import libcst as cst

from patcher import Patch, syntax

DISPLAY = "ProgressMeter.display"


class PrintedRate(Patch):
    """Print the learning rate and images a second in each line of training; upstream has neither.

    They come last, and are those of all ranks. With a schedule the rate is another one each step.
    """

    sites = {f"{name}.py": {"train": 1, DISPLAY: 2} for name in ("distributed", "dataparallel")}
    needles = (b"def train(", b"class ProgressMeter")
    origin = "https://github.com/pytorch/vision/tree/main/references/classification"
    needs = ("metrics_file",)
    changes = [
        (
            "def train(d):\n    for i, x in enumerate(d):\n        p.display(i)\n",
            "def train(d):\n    for i, x in enumerate(d):\n        p.display(i, *record.rates())\n",
        ),
        (
            "class ProgressMeter:\n    def display(self, n):\n        print(n, *self.m, sep=' ')\n",
            "class ProgressMeter:\n    def display(self, n, *more):\n"
            "        print(n, *self.m, *more, sep=' ')\n",
        ),
        (
            "class ProgressMeter:\n    def display(self, n):\n"
            "        print(' '.join(str(m) for m in self.m))\n",
            "class ProgressMeter:\n    def display(self, n, *more):\n"
            "        print(' '.join(str(m) for m in [*self.m, *more]))\n",
        ),
    ]
    leaves = ["def validate(d):\n    for i, x in enumerate(d):\n        p.display(i)\n"]

    def done(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.FunctionDef) and node.name.value == "display":
            last = node.params.star_arg
            return isinstance(last, cst.Param) and last.name.value == "more"
        return syntax.is_call(node, "record.rates")

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef):
        if self.function != DISPLAY or self.is_done_in(updated):
            return updated
        more = cst.Param(cst.Name(self.bring("more")))
        return updated.with_deep_changes(updated.params, star_arg=more)

    def leave_CompFor(self, original: cst.CompFor, updated: cst.CompFor):
        meters = updated.iter
        if self.function != DISPLAY or not isinstance(meters, cst.Attribute):
            return updated
        text = f"[*{self.module.code_for_node(meters)}, *more]"
        return updated.with_changes(iter=cst.parse_expression(text))

    def leave_Call(self, original: cst.Call, updated: cst.Call):
        args = [*updated.args]
        if self.function == "train" and syntax.is_method_call(updated, "display"):
            rates = cst.Arg(cst.parse_expression("record.rates()"), star="*")
            return updated if len(args) > 1 else updated.with_changes(args=[*args, rates])
        stars = [at for at, arg in enumerate(args) if arg.star == "*"]
        if self.function != DISPLAY or len(stars) != 1:
            return updated
        (at,) = stars
        args.insert(at + 1, args[at].with_changes(value=cst.Name("more")))
        return updated.with_changes(args=args)
