import libcst as cst

from patcher import Patch, syntax
from patches.whole_state import optimizer_made


class Resume(Patch):
    """Go on from a checkpoint with --resume, and never replace one of another run, or evaluate random weights, unasked.

    Upstream's --start-epoch starts from random weights, at a best accuracy of 0, over the files of the run before.
    """

    sites = {"distributed.py": {"main_worker": 3}, "dataparallel.py": {"main_worker": 3}}
    needles = (b"torch.optim.", b"best_acc1")
    origin = "https://github.com/D-X-Y/NAS-Bench-201/issues/19"
    changes = [
        (
            "import x\np.add_argument('-x')\ndef main():\n    o = p.parse_args()\n"
            "    sgd = torch.optim.SGD(net.parameters(), 1)\n",
            "...\np.add_argument('-x')\n...\ndef main():\n    o = p.parse_args()\n    check_resume(o)\n"
            "    sgd = resumed(torch.optim.SGD(net.parameters(), 1), net, o)\n",
        ),
        ("def f(o):\n    is_best = acc > best_acc1\n", "def f(o):\n    is_best = acc > o.best_acc1\n"),
        (
            "def f(o):\n    best_acc1 = max(acc, best_acc1)\n",
            "def f(o):\n    best_acc1 = o.best_acc1 = max(acc, o.best_acc1)\n",
        ),
    ]
    leaves = [
        "def main():\n    o = p.parse_args()\n    sgd = torch.optim.SGD(groups, 1)\n",
        "def f(o):\n    best_acc1 = 0\n    best_acc1 = max(acc1, acc5)\n    worse = acc1 < best_acc1\n",
    ]

    def done(self, node: cst.CSTNode) -> bool:
        kept = isinstance(node, cst.Attribute) and node.attr.value == "best_acc1"
        return kept or syntax.is_call(node, "resumed")

    def leave_Assign(self, original: cst.Assign, updated: cst.Assign) -> cst.Assign:
        target, value = updated.targets[0].target, updated.value
        best = f"{self.args}.best_acc1"
        if isinstance(value, cst.Comparison) and syntax.is_name(value.comparisons[0].comparator, "best_acc1"):
            if not isinstance(value.comparisons[0].operator, cst.GreaterThan):
                return updated
            than = value.comparisons[0].with_changes(comparator=cst.parse_expression(best))
            return updated.with_changes(value=value.with_changes(comparisons=[than]))
        if syntax.is_call(value, "max") and syntax.is_name(target, "best_acc1"):
            new = value.args[-1]
            if not syntax.is_name(new.value, "best_acc1"):
                return updated
            larger = value.with_changes(args=[*value.args[:-1], new.with_changes(value=cst.parse_expression(best))])
            kept = cst.AssignTarget(cst.parse_expression(best))
            return updated.with_changes(targets=[*updated.targets, kept], value=larger)
        return self._resumed(updated)

    def _resumed(self, updated: cst.Assign) -> cst.Assign:
        model = optimizer_made(updated.value)
        if model is None or syntax.is_call(updated.value, "resumed"):
            return updated
        if self.has_option("--resume") or self.has_option("--overwrite") or self.has_function("resumed", "bare"):
            return updated
        if not self.insert_check("check_resume", "resume.py"):
            return updated
        for option in ("--resume", "--overwrite"):
            self.insert_option(option, "resume.py", self.parser_name())
        self.insert_function("resumed", "resume.py")
        names = (updated.value, model, cst.Name(self.args))
        return updated.with_changes(value=cst.Call(cst.Name("resumed"), [cst.Arg(node) for node in names]))
