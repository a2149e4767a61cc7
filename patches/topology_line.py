import libcst as cst

from patcher import Patch, syntax


class TopologyLine(Patch):
    """Say at the start, in one line, what this job is: hosts, processes, device, batch, learning rate, workers.

    A second node that forms a world of its own, or a batch that means something else than was thought, is
    otherwise seen in the results, days later.
    """

    sites = {"distributed.py": {"main_worker": 1}, "dataparallel.py": {"main_worker": 1}}
    needles = (b"SGD(", b"print_topology")
    origin = "https://github.com/pytorch/pytorch/issues/137402"
    changes = [
        (
            "import os\ndef main_worker(args):\n    optimizer = torch.optim.SGD(p, args.lr)\n    go()\n",
            "import os\n...\ndef main_worker(args):\n    optimizer = torch.optim.SGD(p, args.lr)\n"
            "    print_topology(args)\n    go()\n",
        ),
    ]
    leaves = ["def main_worker(args):\n    torch.optim.SGD(p)\n", "def f(args):\n    optimizer = Adam(p)\n"]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "print_topology")

    def leave_IndentedBlock(self, original: cst.IndentedBlock, updated: cst.IndentedBlock) -> cst.IndentedBlock:
        # The line belongs behind the optimizer: by then the batch has been split and the device is known.
        if not self.parameters or any(map(self.done, map(syntax.expression, updated.body))):
            return updated
        line = cst.parse_statement(f"print_topology({self.parameters[-1]})\n")
        result = syntax.with_statement(updated, line, after=_makes_optimizer)
        if result is not updated:
            self.insert_function("print_topology", "topology.py")
        return result


def _makes_optimizer(statement: cst.CSTNode) -> bool:
    return syntax.assigns(
        statement, lambda value: any(syntax.is_method_call(n, "SGD") for n in syntax.descendants(value))
    )
