import libcst as cst

from patcher import Patch, syntax


class BareValidation(Patch):
    """Validate without DistributedDataParallel: it waits for ranks that have no images left.

    Its first forward pass after training sends the running statistics of rank 0 to the other ranks.
    They are sent before the loop instead.
    """

    sites = {"distributed.py": {"validate": 1}}
    needles = (b".eval(", b"for_validation")
    origin = "https://github.com/pytorch/pytorch/blob/v2.4.1/torch/nn/parallel/distributed.py#L1573"
    changes = [
        (
            "n = DistributedDataParallel(n)\ndef validate():\n    m.eval()  # all\n",
            "n = DistributedDataParallel(n)\ndef validate():\n"
            "    m = network.for_validation(m)  # all\n",
        )
    ]
    leaves = [
        "model = DataParallel(model)\ndef validate():\n    model.eval()\n",
        "model = DistributedDataParallel(model)\ndef train():\n    model.eval()\n",
        "m = DistributedDataParallel(m)\ndef validate():\n    self.m.eval()\n    x = m.eval()\n",
    ]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "network.for_validation")

    def leave_Expr(self, original: cst.Expr, updated: cst.Expr):
        if self.function != "validate" or not syntax.is_method_call(updated.value, "eval"):
            return updated
        model = syntax.receiver(updated.value)
        nodes = syntax.descendants(self.module)
        wraps = any(syntax.is_name(node, "DistributedDataParallel") for node in nodes)
        if not isinstance(model, cst.Name) or not wraps:
            return updated
        call = syntax.wrapped(f"{self.support('network')}.for_validation", model)
        return cst.Assign([cst.AssignTarget(model)], call, semicolon=updated.semicolon)
