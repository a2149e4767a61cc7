import libcst as cst

from patcher import Patch, syntax

PREVIOUS = "'checkpoint_previous.pth.tar'"


class WholeFiles(Patch):
    """Replace checkpoint, best copy and csv by whole files: a run that is killed while it writes leaves the old ones.

    Upstream writes in place and then copies, so that a kill or a full disk in the middle of it costs both.
    """

    sites = {
        "distributed.py": {"save_checkpoint": 2},
        "dataparallel.py": {"save_checkpoint": 2, "main_worker": 1},
    }
    needles = (b"torch.save(", b"open(", b"files.appended(")
    origin = "https://github.com/Lightning-AI/pytorch-lightning/issues/688"
    changes = [
        (
            "def save_checkpoint(s, best, path):\n"
            "    torch.save(s, path)\n    if best:\n        shutil.copyfile(path, 'b')\n",
            "def save_checkpoint(s, best, path):\n"
            f"    with files.atomic_write(path, {PREVIOUS}) as temporary:\n"
            "        torch.save(s, temporary)\n        if best:\n            files.link(temporary, 'b')\n",
        ),
        (
            "def f():\n    with open(path, 'a+', newline='') as log:\n        log.write(x)\n",
            "def f():\n    with files.appended(path, 'a+', newline='') as log:\n        log.write(x)\n",
        ),
    ]
    leaves = [
        "def save_checkpoint(s, path):\n    with whole(path) as temporary:\n        torch.save(s, temporary)\n",
        "def f(path):\n    torch.save(s, path)\n    with open(path, 'w') as file:\n        file.write(x)\n",
        "def f(path):\n    file = open(path, 'a')\n",
    ]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "files.atomic_write") or syntax.is_call(node, "files.appended")

    def leave_IndentedBlock(
        self, original: cst.IndentedBlock, updated: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        calls = [syntax.expression(line) for line in updated.body]
        saves = [
            i
            for i, call in enumerate(calls)
            if call is not None and syntax.is_call(call, "torch.save")
        ]
        path = calls[saves[0]].args[1].value if saves and len(calls[saves[0]].args) == 2 else None
        if (
            self.function != "save_checkpoint"
            or getattr(path, "value", None) not in self.parameters
        ):
            return updated
        code = f"with {self.support('files')}.atomic_write({path.value}, {PREVIOUS}) as {self.bring('temporary')}:\n"
        lines = [
            syntax.replaced(line, path.value, cst.Name("temporary"))
            for line in updated.body[saves[0] :]
        ]
        guarded = cst.parse_statement(f"{code}    pass\n").with_changes(
            body=cst.IndentedBlock(lines)
        )
        return updated.with_changes(body=[*updated.body[: saves[0]], guarded])

    def leave_Attribute(self, original: cst.Attribute, updated: cst.Attribute) -> cst.Attribute:
        copies = self.function == "save_checkpoint" and syntax.is_dotted(updated, "shutil.copyfile")
        return cst.parse_expression(f"{self.support('files')}.link") if copies else updated

    def leave_WithItem(self, original: cst.WithItem, updated: cst.WithItem) -> cst.WithItem:
        opens = syntax.is_call(updated.item, "open") and len(updated.item.args) > 1
        if not opens or syntax.string(updated.item.args[1].value) not in ("a", "a+"):
            return updated
        appended = cst.parse_expression(f"{self.support('files')}.appended")
        return updated.with_changes(item=updated.item.with_changes(func=appended))
