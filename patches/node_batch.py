import libcst as cst

from patcher import Patch, syntax


class NodeBatch(Patch):
    """Split the batch evenly over the processes of a node; upstream drops the remainder.

    `--batch-size` is the total of the node, as its help says. Upstream divides it by the number of
    visible GPUs: `-b 10` on four trains with 8 images a step, `-b 4` on eight with none.
    """

    sites = {"distributed.py": {"main_worker": 1}}
    needles = (b"batch_size",)
    origin = "https://github.com/hancyran/RepSurf/issues/14"
    changes = [
        (
            "def f():\n    args.batch_size = int(args.batch_size / nprocs)  # its own\n",
            "def f():\n    args.batch_size = loading.split_batch(args.batch_size)  # its own\n",
        ),
        (
            "def f():\n    a.batch_size = a.batch_size // n\n",
            "def f():\n    a.batch_size = loading.split_batch(a.batch_size)\n",
        ),
    ]
    leaves = [
        "args.workers = int(args.workers / nprocs)\n",
        "args.batch_size = int(args.batch_size * nprocs)\n",
        "args.batch_size = int(args.workers / nprocs)\n",
        "size = int(args.batch_size / nprocs)\n",
    ]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "loading.split_batch")

    def leave_Assign(self, original: cst.Assign, updated: cst.Assign):
        target, whole = updated.targets[0].target, _divided(updated.value)
        if not isinstance(target, cst.Attribute) or target.attr.value != "batch_size":
            return updated
        if whole is None or not whole.deep_equals(target):
            return updated
        split = syntax.wrapped(f"{self.support('loading')}.split_batch", whole)
        return updated.with_changes(value=split)


def _divided(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """What `int(x / n)` or `x // n` divides; None for anything else."""
    division: type[cst.BaseBinaryOp] = cst.FloorDivide
    if syntax.is_call(node, "int") and len(node.args) == 1:
        node, division = node.args[0].value, cst.Divide
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, division):
        return node.left
    return None
