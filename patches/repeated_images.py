import libcst as cst

from patcher import Patch, places, syntax


class RepeatedImages(Patch):
    """Have each image N times in an epoch with --repeats, augmented anew: less noise in gradients.

    The epoch is as long as before, so of the images it has one in N.
    """

    sites = {"distributed.py": {"main_worker": 1}, "dataparallel.py": {"main_worker": 1}}
    needles = (b"DataLoader(",)
    origin = "https://arxiv.org/abs/1901.09335"
    needs = ("samples_left", "seeded_run")  # `seeded_run` looks for the sampler that goes here
    changes = [
        (
            "def f(o):\n    s = DistributedSampler(x)\n"
            "    d = DataLoader(x, sampler=seeds.SamplesLeft(s, run))\n",
            "def f(o):\n    s = repeats.sampler(x, o)\n"
            "    d = DataLoader(x, sampler=seeds.SamplesLeft(s, run))\n",
        ),
        (
            "def f(o):\n    d = DataLoader(x, sampler=seeds.shuffled(x, run))\n",
            "def f(o):\n    d = DataLoader(x, sampler=repeats.shuffled(x, run))\n",
        ),
    ]
    leaves = [
        "def f(o):\n    s = DistributedSampler(x, shuffle=False)\n"
        "    d = DataLoader(x, sampler=seeds.SamplesLeft(s, run))\n",
        "def f(o):\n    s = DistributedSampler(y)\n    t = RandomSampler(x)\n"
        "    d = DataLoader(x, sampler=seeds.SamplesLeft(t, run))\n"
        "    e = DataLoader(y, sampler=s)\n",
    ]

    def __init__(self):
        super().__init__()
        self.sampler = ""  # what the function at hand calls the sampler of its training loader

    def done(self, node: cst.CSTNode) -> bool:
        calls = ("sampler", "shuffled")
        return any(syntax.is_call(node, f"repeats.{name}") for name in calls)

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        if "." in self.function:
            return  # a nested function makes no loader
        loader = places.training_loader(node)
        given = syntax.argument(loader, "sampler") if loader else None
        left = given.value if given else None
        of = left.args[0].value if syntax.is_call(left, "seeds.SamplesLeft") else None
        self.sampler = of.value if isinstance(of, cst.Name) else ""

    def leave_Call(self, original: cst.Call, updated: cst.Call):
        if syntax.is_call(updated, "seeds.shuffled"):
            return updated.with_changes(func=self.named("shuffled"))
        return updated

    def leave_Assign(self, original: cst.Assign, updated: cst.Assign):
        name, call = syntax.binding(updated) or ("", None)
        if not syntax.is_call_of(call, "DistributedSampler") or len(call.args) != 1:
            return updated
        if name != self.sampler:
            return updated
        images = cst.Arg(call.args[0].value, comma=syntax.COMMA)
        args = [images, cst.Arg(cst.Name(self.args))]
        return updated.with_changes(value=cst.Call(self.named("sampler"), args))

    def named(self, function: str) -> cst.BaseExpression:
        return cst.parse_expression(f"{self.add_options('repeats')}.{function}")
