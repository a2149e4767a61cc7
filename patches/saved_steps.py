import libcst as cst

from patcher import Patch, places, syntax


class SavedSteps(Patch):
    """Save within the epoch, every N steps and on a signal, and go on at that step: a preempted run loses nothing.

    Upstream saves after each epoch, which may take hours, and dies of a signal wherever it is.
    """

    sites = {"distributed.py": {"train": 1, "validate": 1}, "dataparallel.py": {"train": 1, "validate": 1}}
    needles = (b"def train(", b"def validate(")
    origin = "https://github.com/pytorch/pytorch/issues/119856"
    changes = [
        (
            "import x\np.add_argument('-x')\ndef main():\n    p.parse_args()\n"
            "def train(feed, o):\n    bar = ProgressMeter(9, prefix='Epoch: [{}]'.format(n))\n    net.train()\n"
            "    for i, x in enumerate(feed):\n        opt.step()\n",
            "...\np.add_argument('-x')\n...\ndef main():\n    p.parse_args()\n"
            "def train(feed, o):\n    bar = ProgressMeter(9, prefix='Epoch: [{}]'.format(n))\n    net.train()\n"
            "    for i, x in steps_left(feed, bar, net, opt, n, o):\n        opt.step()\n",
        ),
        (
            "import x\ndef validate(feed, o):\n    for i, x in enumerate(totalled(feed, bar)):\n        f(x)\n",
            "...\n"
            "def validate(feed, o):\n    for i, x in enumerate(totalled(left_if_asked(feed, o), bar)):\n        f(x)\n",
        ),
    ]
    leaves = [
        "def train(feed, o):\n    for i, x in enumerate(feed):\n        f(x)\n",
        "def validate(feed, o):\n    for x in other(feed):\n        f(x)\n",
        "def f(feed, o):\n    for i, x in enumerate(feed):\n        f(x)\n",
    ]

    def __init__(self):
        super().__init__()
        self.names = []

    def done(self, node: cst.CSTNode) -> bool:
        return any(syntax.is_call(node, name) for name in ("steps_left", "left_if_asked"))

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        names = places.training_names(node)
        self.names = [names.get(name) for name in ("progress", "model", "optimizer", "epoch")]

    def leave_For(self, original: cst.For, updated: cst.For) -> cst.For:
        steps = places.innermost(updated.iter, "enumerate", "steps_left")
        if steps is None or self.function not in ("train", "validate"):
            return updated
        loader = cst.Name(self.parameters[0]) if self.parameters else None
        if self.function == "validate":
            within = places.innermost(steps, "left_if_asked", "totalled") or steps
            if not syntax.is_name(within.args[0].value, loader.value) or syntax.is_call(within, "left_if_asked"):
                return updated
            self.insert_function("left_if_asked", "saved_steps.py")
            left = cst.Call(cst.Name("left_if_asked"), [cst.Arg(loader), cst.Arg(cst.Name(self.args))])
            return updated.with_deep_changes(within.args[0], value=left)
        parser = self.parser_name()
        if not syntax.is_name(steps.args[0].value, loader.value) or syntax.is_call(steps, "steps_left"):
            return updated
        if None in self.names or parser is None:
            return updated
        if self.has_option("--save-every") or self.has_function("steps_left", "save_step", "leave", "Watch"):
            return updated
        self.insert_option("--save-every", "saved_steps.py", parser)
        self.insert_function("steps_left", "saved_steps.py")
        args = [cst.Arg(node) for node in (loader, *self.names, cst.Name(self.args))]
        return updated.with_changes(iter=updated.iter.deep_replace(steps, cst.Call(cst.Name("steps_left"), args)))
