import libcst as cst

from patcher import Patch, Place, syntax


class TensorboardEvents(Patch):
    """Write the metrics for TensorBoard, too, with --tensorboard; upstream only prints.

    They are those of metrics.jsonl, and written anew from it when a run is resumed.
    """

    sites = {
        f"{name}.py": {"main": 1, "main_worker": 1} for name in ("distributed", "dataparallel")
    }
    needles = (b"def main_worker(", b"parse_args")
    origin = "https://docs.pytorch.org/docs/stable/tensorboard.html"
    needs = ("metrics_file",)
    changes = [
        (
            "def main():\n    o = p.parse_args()\n",
            "def main():\n    o = p.parse_args()\n    events.check(o)\n",
        ),
        (
            "def main_worker(o):\n    for n in range(o.epochs):\n        train(d, net, o)\n",
            "def main_worker(o):\n    events.begin(o)\n"
            "    for n in range(o.epochs):\n        train(d, net, o)\n",
        ),
    ]
    leaves = ["def f(o):\n    for n in range(o.epochs):\n        train(d, net, o)\n"]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "events.check") or syntax.is_call(node, "events.begin")

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef):
        if self.function == "main_worker" and not self.is_done_in(updated):
            begin = f"{self.support('events')}.begin({self.args})\n"
            return self.insert(updated, Place.BEFORE_LOOP, begin, rank=20)
        return self.insert_check(updated, "events.check", rank=55, options=True)
