import libcst as cst

from patcher import Patch, syntax


class BareValidation(Patch):
    """Validate with the bare model: DistributedDataParallel waits for all ranks, and one may have nothing to validate.

    Its first forward pass after training sends the running statistics of rank 0 to the other ranks,
    so a rank without a batch blocks them.  They are sent before the loop instead.
    """

    sites = {"distributed.py": {"validate": 1}}
    needles = (b".eval(", b"for_validation")
    origin = "https://github.com/pytorch/pytorch/blob/v2.4.1/torch/nn/parallel/distributed.py#L1573"
    changes = [
        (
            "n = DistributedDataParallel(n)\ndef validate():\n    model.eval()  # all\n",
            "...\nn = DistributedDataParallel(n)\n...\ndef validate():\n    model = for_validation(model)  # all\n",
        ),
        (
            "x = parallel.DistributedDataParallel(x)\ndef validate():\n    net.eval()\n",
            "...\nx = parallel.DistributedDataParallel(x)\n...\ndef validate():\n    net = for_validation(net)\n",
        ),
    ]
    leaves = [
        "model = DataParallel(model)\ndef validate():\n    model.eval()\n",
        "model = DistributedDataParallel(model)\ndef train():\n    model.eval()\n",
        "model = DistributedDataParallel(model)\ndef validate():\n    self.model.eval()\n    x = model.eval()\n",
    ]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "for_validation")

    def leave_Expr(self, original: cst.Expr, updated: cst.Expr) -> "cst.Expr | cst.Assign":
        if self.function != "validate" or not syntax.is_method_call(updated.value, "eval"):
            return updated
        model = updated.value.func.value
        if not isinstance(model, cst.Name) or not self._wraps() or self.has_function("for_validation"):
            return updated
        self.insert_function("for_validation", "for_validation.py")
        call = syntax.wrapped("for_validation", model)
        return cst.Assign([cst.AssignTarget(model)], call, semicolon=updated.semicolon)

    def _wraps(self) -> bool:
        """Whether the script names DistributedDataParallel at all."""
        return any(syntax.is_name(node, "DistributedDataParallel") for node in syntax.descendants(self.module))
