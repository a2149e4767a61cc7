import libcst as cst

from patcher import Patch, Place, places, syntax

BEFORE = "first = run.begin_epoch({epoch}, {loader}, {progress}.meters)\n"
REACHED = "run.reached({epoch}, {step} + 1, {progress}.meters)\n"
DUE = "if stop.is_due():\n    run.save_and_exit(save_checkpoint)\n"
COMING = "if stop.is_coming():\n    run.save_and_exit(save_checkpoint)\n"
SAVE = "if run.save_is_due({args}.save_every):\n    run.save(save_checkpoint)\n"
TRAIN = [
    (Place.BEFORE_LOOP, "\n" + BEFORE + DUE, 20),
    (Place.FIRST_IN_LOOP, "seeds.seed_step(run, {epoch}, {step})\n", 10),
    (Place.LAST_IN_LOOP, REACHED + DUE + SAVE, 20),
]
VALIDATE = [(Place.FIRST_IN_LOOP, COMING, 10), (Place.AFTER_LOOP, "\n" + DUE, 10)]
COUNTS = {"main": 1, "main_worker": 4, "train": 2, "validate": 1}


class SavedSteps(Patch):
    """Save every N steps and on a signal, and go on at that step; upstream loses the epoch.

    It saves after each epoch only, which may take hours, and dies of a signal wherever it is.
    """

    sites = {"distributed.py": COUNTS, "dataparallel.py": COUNTS}
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
        self.names: dict[str, str] = {}  # what the function at hand calls what it trains with

    def done(self, node: cst.CSTNode) -> bool:
        calls = ("stop.catch_signals", "stop.watch", "stop.is_due")
        return any(syntax.is_call(node, name) for name in calls)

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        if "." not in self.function:  # not a nested one
            loader = {"loader": self.parameters[0]} if self.parameters else {}
            self.names = {**places.training_names(node), "args": self.args, **loader}

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef):
        if self.is_done_in(updated):
            return updated
        if places.parsed_into(updated):
            self.support("stop")
            return self.insert(updated, Place.PARSED, "stop.catch_signals()\n", rank=-10)
        if self.function == "main_worker":
            self.add_options(self.support("stop"))
            watch = f"\nstop.watch({self.args}.timeout)\n"
            return self.insert(updated, Place.BEFORE_LOOP, watch, rank=10)
        if self.function not in ("train", "validate"):
            return updated
        self.support("stop")
        self.bring("run")
        lines = VALIDATE
        if self.function == "train":
            missing = [name for name in ("epoch", "step", "progress") if name not in self.names]
            if missing:
                self.refuse(f"train does not show its {', '.join(missing)}", original)
            self.support("seeds")
            self.bring("first")
            lines = TRAIN
        for place, code, rank in lines:
            updated = self.insert(updated, place, code.format(**self.names), rank)
        return places.with_parameter(updated, "run")

    def leave_Call(self, original: cst.Call, updated: cst.Call):
        if self.function == "train" and syntax.is_call(updated, "enumerate"):
            loops = syntax.is_name(updated.args[0].value, self.names.get("loader", ""))
            if loops and len(updated.args) == 1:
                return updated.with_changes(args=[*updated.args, cst.Arg(cst.Name("first"))])
        calls = syntax.is_call(updated, "train") or syntax.is_call(updated, "validate")
        if self.function != "main_worker" or not calls:
            return updated
        if any(syntax.is_name(arg.value, "run") for arg in updated.args):
            return updated
        return places.with_argument(updated, "run")
