import libcst as cst

from patcher import Patch, syntax


class SmoothedLabels(Patch):
    """Smooth the labels of training with --label-smoothing; with plain ones a model is too sure.

    Validation measures the plain loss, whatever training does.
    """

    sites = {"distributed.py": {"main_worker": 1}, "dataparallel.py": {"main_worker": 1}}
    needles = (b"CrossEntropyLoss(", b"smoothing.Loss(")
    origin = "https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html"
    changes = [
        (
            "def f(o):\n    c = nn.CrossEntropyLoss().to(device)\n",
            "def f(o):\n    c = smoothing.Loss(o.label_smoothing).to(device)\n",
        )
    ]
    leaves = [
        "def f(o):\n    c = nn.CrossEntropyLoss(label_smoothing=0.2)\n",
        "def f(o):\n    c = nn.BCELoss()\n",
    ]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "smoothing.Loss")

    def leave_Call(self, original: cst.Call, updated: cst.Call):
        if not syntax.is_call_of(updated, "CrossEntropyLoss") or updated.args:
            return updated
        share = cst.parse_expression(f"{self.args}.label_smoothing")
        return syntax.wrapped(f"{self.add_options('smoothing')}.Loss", share)
