import libcst as cst

from patcher import Patch, syntax

HELP = "loading processes of each loader (default: a share of the cores)"


class LoaderWorkers(Patch):
    """Let both loaders obey --workers; upstream parses it and never reads it.

    Its default becomes a share of the cores. Two workers starve a GPU (in the vendor's guide it
    waits 2.45 of every 3.04 s for data), and four for each of eight processes are too many for a
    small machine. The number of processes is known after the launch, so a check follows it.
    Workers stay for all epochs, since it takes seconds to start them; torch refuses to keep none.
    """

    sites = {
        "distributed.py": {"<module>": 1, "main": 1, "main_worker": 2},
        "dataparallel.py": {"<module>": 1, "main": 1, "main_worker": 2},
    }
    needles = (b"num_workers", b"--workers", b"parse_args")
    origin = "https://github.com/pytorch/examples/issues/164"
    changes = [
        (
            "def f(o):\n    d = DataLoader(x, num_workers=8)\n",
            "def f(o):\n"
            "    d = DataLoader(x, num_workers=o.workers, persistent_workers=o.workers > 0)\n",
        ),
        (
            "p.add_argument('-j', '--workers', default=4, type=int, help='how many')\n",
            f"p.add_argument('-j', '--workers', default=None, type=int, help='{HELP}')\n",
        ),
        (
            "def main():\n    o = p.parse_args()\n",
            "def main():\n    o = p.parse_args()\n    loading.check(o)\n",
        ),
    ]
    leaves = [
        "d = DataLoader(x, num_workers=n)\n",
        "parser.add_argument('--workers', default=n, type=int)\n",
        "parser.add_argument('--epochs', default=4, type=int)\n",
    ]

    def done(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Arg) and syntax.is_name(node.keyword, "num_workers"):
            return isinstance(node.value, cst.Attribute) and node.value.attr.value == "workers"
        if isinstance(node, cst.Call) and syntax.adds_option(node, "--workers"):
            default = syntax.argument(node, "default")
            return default is not None and syntax.is_name(default.value, "None")
        return syntax.is_call(node, "loading.check")

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef):
        return self.insert_check(updated, "loading.check", rank=15)

    def leave_Call(self, original: cst.Call, updated: cst.Call):
        option = syntax.adds_option(updated, "--workers")
        number = syntax.argument(updated, "default" if option else "num_workers")
        if number is None or syntax.integer(number.value) is None:
            return updated
        if option:
            values = {"default": cst.Name("None"), "help": cst.SimpleString(repr(HELP))}
            return updated.with_changes(args=[_valued(arg, values) for arg in updated.args])
        workers = f"{self.args}.workers"
        obeyed = number.with_changes(value=cst.parse_expression(workers))
        stay = cst.parse_expression(f"{workers} > 0")
        kept = number.with_changes(keyword=cst.Name("persistent_workers"), value=stay)
        at = updated.args.index(number)
        args = [*updated.args[:at], obeyed, kept, *updated.args[at + 1 :]]
        return updated.with_changes(args=args)


def _valued(arg: cst.Arg, values: dict[str, cst.BaseExpression]) -> cst.Arg:
    value = values.get(arg.keyword.value) if arg.keyword else None
    return arg if value is None else arg.with_changes(value=value)
