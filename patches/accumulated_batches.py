import libcst as cst

from patcher import Patch, places, syntax


class AccumulatedBatches(Patch):
    """Compute a batch in parts with --accum N; upstream crashes if it does not fit into memory.

    The gradients of the parts add up to those of the batch, and ranks exchange them once. So the
    learning rate, the meters and a checkpoint mean what they mean without it.
    """

    sites = {"distributed.py": {"train": 1}, "dataparallel.py": {"train": 1}}
    needles = (b"def train(",)
    origin = "https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation"
    changes = [
        (
            "def train(d, net, o):\n    net.train()\n    for x, y in d:\n\n        s = net(x)\n"
            "        l = f(s, y)\n        a = accuracy(s, y)\n\n"
            "        sgd.zero_grad()\n        l.backward()\n        sgd.step()\n",
            "def train(d, net, o):\n    net.train()\n    for x, y in d:\n\n"
            "        sgd.zero_grad()\n        parts = accumulation.Parts(net, x, y, o.accum)\n"
            "        for part in parts:\n            s = net(part.inputs)\n"
            "            l = f(s, part.labels) * part.share\n            l.backward()\n"
            "            parts.add(s, l)\n        s, l = parts.whole()\n"
            "        a = accuracy(s, y)\n\n        sgd.step()\n",
        )
    ]
    leaves = ["def validate(d, net):\n    net.eval()\n    for x, y in d:\n        s = net(x)\n"]

    def done(self, node: cst.CSTNode) -> bool:
        return self.function == "train" and syntax.is_call(node, "accumulation.Parts")

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef):
        if self.function != "train" or self.is_done_in(updated):
            return updated
        model = places.training_names(updated).get("model", "")
        is_loop = places.is_loop(updated)

        def leave(old: cst.CSTNode, new: cst.CSTNode) -> cst.CSTNode:
            return self.in_parts(new, model) if isinstance(new, cst.For) and is_loop(old) else new

        return syntax.rewritten(updated, leave)

    def in_parts(self, loop: cst.For, model: str) -> cst.For:
        """The loop with forward, loss and backward in a loop of their own, over the parts."""
        lines = [*loop.body.body]
        at = next((n for n, line in enumerate(lines) if _reads(_given(line)[1], model)), len(lines))
        (scores, ahead), (loss, mean) = map(_given, [*lines, loop, loop][at : at + 2])
        back = next((line for line in lines[at:] if _calls(line, "backward")), loop)
        reset = next((line for line in lines if _calls(line, "zero_grad")), loop)
        inputs, labels = _last(ahead), _last(mean)
        shown = inputs and labels and _reads(mean, scores) and _reads(back, loss)
        if not (shown and ahead and mean) or loop in (back, reset):
            what = "scores = model(inputs), below it loss = criterion(scores, labels), later"
            self.refuse(f"train has no {what} loss.backward(), and optimizer.zero_grad()", loop)
        module, part, parts = self.add_options("accumulation"), *map(self.bring, ("part", "parts"))
        moved = [lines[at + 1], back, *(line for line in lines[at:] if line is reset)]
        text = self.module.code_for_node
        first, *others = syntax.statements(
            f"{text(cst.ensure_type(reset, cst.SimpleStatementLine).body[0])}\n"
            f"{parts} = {module}.Parts({model}, {inputs}, {labels}, {self.args}.accum)\n"
            f"for {part} in {parts}:\n"
            f"    {scores} = {text(_with(ahead, inputs, f'{part}.inputs'))}\n"
            f"    {loss} = {text(_with(mean, labels, f'{part}.labels'))} * {part}.share\n"
            f"    {text(cst.ensure_type(back, cst.SimpleStatementLine).body[0])}\n"
            f"    {parts}.add({scores}, {loss})\n"
            f"{scores}, {loss} = {parts}.whole()\n",
            self.module.default_newline,
        )
        block = syntax.without(cst.ensure_type(loop.body, cst.IndentedBlock), moved.__contains__)
        new = [*([first] if reset in moved else []), *others]
        new[0] = new[0].with_changes(leading_lines=syntax.above(lines[at]))
        body = [part for line in block.body for part in (new if line is lines[at] else [line])]
        return loop.with_changes(body=block.with_changes(body=body))


def _given(line: cst.CSTNode) -> tuple[str, cst.Call | None]:
    """The name and the call in `name = call(...)`."""
    name, value = syntax.binding(line) or ("", None)
    return (name, value) if isinstance(value, cst.Call) else ("", None)


def _last(call: cst.Call | None) -> str:
    """The last argument of a call, if it is a variable."""
    value = call.args[-1].value if call and call.args else None
    return value.value if isinstance(value, cst.Name) else ""


def _with(call: cst.Call, name: str, new: str) -> cst.Call:
    return syntax.replaced(call, name, cst.parse_expression(new))


def _reads(node: cst.CSTNode | None, name: str) -> bool:
    return node is not None and any(syntax.is_name(n, name) for n in syntax.descendants(node))


def _calls(line: cst.CSTNode, method: str) -> bool:
    return syntax.is_method_call(syntax.expression(line), method)
