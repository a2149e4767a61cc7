import libcst as cst

from patcher import Patch, places, syntax


class OptimizerChoice(Patch):
    """Choose the optimizer with --opt, what decays with --decay; upstream has SGD, all decays.

    Published recipes of transformers have AdamW. Weight decay is meant for what multiplies: not for
    biases, class tokens and position embeddings, nor for the scale of a norm.
    """

    sites = {"distributed.py": {"main_worker": 1}, "dataparallel.py": {"main_worker": 1}}
    needles = (b"torch.optim.SGD(", b"optimizers.build(")
    origin = "https://github.com/pytorch/vision/tree/main/references/classification"
    changes = [
        (
            "def f(o):\n    sgd = torch.optim.SGD(net.parameters(), o.lr, momentum=o.momentum, "
            "weight_decay=o.weight_decay)\n",
            "def f(o):\n    sgd = optimizers.build(net, o)\n",
        )
    ]
    leaves = ["def f(o):\n    sgd = torch.optim.Adam(net.parameters(), lr=o.lr)\n"]
    needs = ("fused_optimizer",)  # of the two lines that it writes, this replaces one

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "optimizers.build")

    def leave_SimpleStatementLine(self, original, updated: cst.SimpleStatementLine):
        (model, _), value = places.optimized(updated) or ("", ""), syntax.expression(updated)
        if not model or not syntax.is_method_call(value, "SGD"):
            return updated
        given = {arg.keyword.value if arg.keyword else "lr": arg.value for arg in value.args[1:]}
        given.pop("fused", None)
        said = {name: self.module.code_for_node(value) for name, value in given.items()}
        own = {name: f"{self.args}.{name}" for name in ("lr", "momentum", "weight_decay")}
        if said != own:
            options = ", ".join(f"{name}={value}" for name, value in own.items())
            self.refuse(f"expected SGD({model}.parameters(), {options})", original)
        build = f"{self.add_options('optimizers')}.build({model}, {self.args})"
        return updated.with_deep_changes(updated.body[0], value=cst.parse_expression(build))
