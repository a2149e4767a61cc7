import libcst as cst

from patcher import Patch, Place, places, syntax

LEAVES = ":\n    run.save_and_exit(save_checkpoint)\n"
BEFORE = (
    "\nfirst = run.begin_epoch({epoch}, {loader}, {progress}.meters)\nif stop.is_due()" + LEAVES
)
LAST = """\
run.reached({epoch}, {step} + 1, {progress}.meters)
if stop.is_due():
    run.save_and_exit(save_checkpoint)
if run.save_is_due({args}.save_every):
    run.save(save_checkpoint)
"""


class SavedSteps(Patch):
    """Save within the epoch, every N steps and on a signal, and go on at that step: a preempted run loses nothing.

    Upstream saves after each epoch, which may take hours, and dies of a signal wherever it is.
    """

    sites = {
        "distributed.py": {"main": 1, "main_worker": 4, "train": 2, "validate": 1},
        "dataparallel.py": {"main": 1, "main_worker": 4, "train": 2, "validate": 1},
    }
    needles = (b"def train(", b"def validate(", b"def main_worker(", b"parse_args")
    origin = "https://github.com/pytorch/pytorch/issues/119856"
    needs = ("resume", "any_device")
    changes = [
        (
            "def main():\n    o = p.parse_args()\n",
            "def main():\n    o = p.parse_args()\n    stop.catch_signals()\n",
        ),
        (
            "def validate(feed, o):\n    for x in feed:\n        f(x)\n",
            "def validate(feed, run, o):\n    for x in feed:\n        if stop.is_coming():\n"
            "            run.save_and_exit(save_checkpoint)\n        f(x)\n"
            "\n    if stop.is_due():\n        run.save_and_exit(save_checkpoint)\n",
        ),
    ]
    leaves = ["def f(feed, o):\n    for i, x in enumerate(feed):\n        f(x)\n"]

    def __init__(self):
        super().__init__()
        self.names = {}

    def done(self, node: cst.CSTNode) -> bool:
        return any(
            syntax.is_call(node, f"stop.{name}") for name in ("catch_signals", "watch", "is_due")
        )

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        if "." in self.function:
            return  # a function in it is not what it is about
        self.names = dict(places.training_names(node), args=self.args)
        if self.parameters:
            self.names["loader"] = self.parameters[0]

    def leave_FunctionDef(
        self, original: cst.FunctionDef, updated: cst.FunctionDef
    ) -> cst.FunctionDef:
        if places.parsed_into(updated) and not self.is_done_in(updated):
            self.support("stop")
            return self.insert(updated, Place.PARSED, "stop.catch_signals()\n", rank=-10)
        if self.function not in ("main_worker", "train", "validate") or self.is_done_in(updated):
            return updated
        self.support("stop")
        if self.function == "main_worker":
            self.add_options("stop")
            return self.insert(
                updated, Place.BEFORE_LOOP, f"\nstop.watch({self.args}.timeout)\n", rank=10
            )
        self.bring("run")
        if self.function == "validate":
            updated = self.insert(
                updated, Place.FIRST_IN_LOOP, "if stop.is_coming()" + LEAVES, rank=10
            )
            updated = self.insert(updated, Place.AFTER_LOOP, "\nif stop.is_due()" + LEAVES, rank=10)
            return places.with_parameter(updated, "run")
        missing = [name for name in ("epoch", "step", "progress") if name not in self.names]
        if missing:
            self.refuse(f"train does not show its {', '.join(missing)}", original)
        self.bring("first")
        drawn = (
            f"{self.support('seeds')}.seed_step(run, {self.names['epoch']}, {self.names['step']})\n"
        )
        updated = self.insert(updated, Place.BEFORE_LOOP, BEFORE.format(**self.names), rank=20)
        updated = self.insert(updated, Place.FIRST_IN_LOOP, drawn, rank=10)
        updated = self.insert(updated, Place.LAST_IN_LOOP, LAST.format(**self.names), rank=20)
        return places.with_parameter(updated, "run")

    def leave_Call(self, original: cst.Call, updated: cst.Call) -> cst.Call:
        numbers = (
            self.function == "train"
            and syntax.is_call(updated, "enumerate")
            and len(updated.args) == 1
        )
        if numbers and syntax.is_name(updated.args[0].value, self.names.get("loader", "")):
            comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
            return updated.with_changes(
                args=[updated.args[0].with_changes(comma=comma), cst.Arg(cst.Name("first"))]
            )
        loops = self.function == "main_worker" and any(
            syntax.is_call(updated, name) for name in ("train", "validate")
        )
        if loops and not any(syntax.is_name(arg.value, "run") for arg in updated.args):
            return places.with_argument(updated, "run")
        return updated
