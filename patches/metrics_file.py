import libcst as cst

from patcher import Patch, Place, places, syntax

RECORD = "record = metrics.Record(run, {progress}, {optimizer}, len({loader}))\n"
COUNTS = {"train": 2, "validate": 1}


class MetricsFile(Patch):
    """Write metrics.jsonl, a line for each printed one and each validation; a log is hard to plot.

    The output folder has it beside the checkpoints. Upstream only prints, and a resumed run prints
    steps twice.
    """

    sites = {"distributed.py": COUNTS, "dataparallel.py": COUNTS}
    needles = (b"def train(", b"def validate(")
    origin = "https://jsonlines.org/"
    needs = ("train_meters", "exact_validation", "saved_steps")
    changes = [
        (
            "def train(d, net, sgd, n):\n    p = ProgressMeter('Epoch {}'.format(n))\n"
            "    for i, x in enumerate(d):\n        sgd.step()\n"
            "        if i < 9:\n            p.display(i)\n",
            "def train(d, net, sgd, n):\n    p = ProgressMeter('Epoch {}'.format(n))\n"
            "    record = metrics.Record(run, p, sgd, len(d))\n"
            "    for i, x in enumerate(d):\n        sgd.step()\n"
            "        if i < 9:\n            record.line(i)\n            p.display(i)\n",
        ),
        (
            "def validate(d):\n    p = ProgressMeter(n)\n    for x in d:\n        f(x)\n",
            "def validate(d):\n    p = ProgressMeter(n)\n    for x in d:\n        f(x)\n"
            "    metrics.validated(run, p)\n",
        ),
    ]
    leaves = [
        "def f(d):\n    p = ProgressMeter(n)\n    for i, x in enumerate(d):\n"
        "        if i < 9:\n            p.display(i)\n"
    ]

    def done(self, node: cst.CSTNode) -> bool:
        calls = ("metrics.Record", "metrics.validated", "record.line")
        return any(syntax.is_call(node, name) for name in calls)

    def leave_If(self, original: cst.If, updated: cst.If):
        calls = map(syntax.expression, getattr(updated.body, "body", ()))
        shown = next((call for call in calls if syntax.is_method_call(call, "display")), None)
        if self.function != "train" or shown is None or self.is_done_in(updated):
            return updated
        step = self.module.code_for_node(shown.args[0].value)
        line = syntax.statements(f"record.line({step})\n", self.module.default_newline)
        return updated.with_deep_changes(updated.body, body=[*line, *updated.body.body])

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef):
        if self.function not in ("train", "validate") or self.is_done_in(original):
            return updated
        names = places.training_names(updated)
        needed = ["progress"] + ["optimizer"] * (self.function == "train")
        missing = [name for name in needed if name not in names]
        if missing:
            self.refuse(f"{self.function} does not show its {', '.join(missing)}", original)
        self.support("metrics")
        if self.function == "validate":
            line = f"metrics.validated(run, {names['progress']})\n"
            return self.insert(updated, Place.AFTER_LOOP, line, rank=30)
        self.bring("record")
        code = RECORD.format(**names, loader=self.parameters[0])
        return self.insert(updated, Place.BEFORE_LOOP, code, rank=40)
