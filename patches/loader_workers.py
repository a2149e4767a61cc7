import libcst as cst

from patcher import Patch, syntax

HELP = "loading processes of each loader (default: a share of the cores)"


class LoaderWorkers(Patch):
    """Let both loaders obey --workers, which upstream parses and never reads.

    Its default becomes a share of the cores: two workers starve a GPU (in the vendor's guide it waits 2.45 of
    every 3.04 s for data), and four for each of eight processes are too many for a small machine. Of how many
    processes it is a share is known only after the launch, so a check below it says how many these are.
    Workers stay for all epochs, since starting them takes seconds; torch prefetches only where there are any.
    """

    sites = {
        "distributed.py": {"<module>": 1, "main": 1, "main_worker": 2},
        "dataparallel.py": {"<module>": 1, "main": 1, "main_worker": 2},
    }
    needles = (b"num_workers", b"--workers", b"parse_args")
    origin = "https://github.com/pytorch/examples/issues/164"
    changes = [
        (
            "d = DataLoader(x, num_workers=2, shuffle=True)\n",
            "d = DataLoader(x, num_workers=args.workers, persistent_workers=args.workers > 0, shuffle=True)\n",
        ),
        (
            "def f(o):\n    d = DataLoader(x, num_workers=8)\n",
            "def f(o):\n    d = DataLoader(x, num_workers=o.workers, persistent_workers=o.workers > 0)\n",
        ),
        (
            "parser.add_argument('-j', '--workers', default=4, type=int, help='how many')\n",
            f"parser.add_argument('-j', '--workers', default=None, type=int, help='{HELP}')\n",
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
        default = (
            syntax.argument(node, "default") if syntax.adds_option(node, "--workers") else None
        )
        return syntax.is_call(node, "loading.check") or (
            default and syntax.is_name(default.value, "None")
        )

    def leave_FunctionDef(
        self, original: cst.FunctionDef, updated: cst.FunctionDef
    ) -> cst.FunctionDef:
        return self.insert_check(updated, "loading.check", rank=15)

    def leave_Call(self, original: cst.Call, updated: cst.Call) -> cst.Call:
        option = syntax.adds_option(updated, "--workers")
        number = syntax.argument(updated, "default" if option else "num_workers")
        if number is None or syntax.integer(number.value) is None:
            return updated
        if option:
            values = {"default": cst.Name("None"), "help": cst.SimpleString(repr(HELP))}
            return updated.with_changes(args=[_valued(arg, values) for arg in updated.args])
        workers = number.with_changes(value=cst.parse_expression(f"{self.args}.workers"))
        stay = number.with_changes(
            keyword=cst.Name("persistent_workers"),
            value=cst.parse_expression(f"{self.args}.workers > 0"),
        )
        if workers.comma is cst.MaybeSentinel.DEFAULT:
            workers = workers.with_changes(
                comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
            )
        args = [
            new for arg in updated.args for new in ([workers, stay] if arg is number else [arg])
        ]
        return updated.with_changes(args=args)


def _valued(arg: cst.Arg, values: "dict[str, cst.BaseExpression]") -> cst.Arg:
    value = values.get(arg.keyword.value) if arg.keyword else None
    return arg if value is None else arg.with_changes(value=value)
