import libcst as cst

from patcher import Patch, syntax

PREVIOUS = "'checkpoint_previous.pth.tar'"


class WholeFiles(Patch):
    """Replace checkpoints and the csv atomically; upstream loses them if it dies while it writes.

    It writes in place and then copies, so a kill or a full disk in between costs both checkpoints.
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
            "        torch.save(s, temporary)\n"
            "        if best:\n            files.link(temporary, 'b')\n",
        ),
        (
            "def f():\n    with open(path, 'a+') as log:\n        log.write(x)\n",
            "def f():\n    with files.appended(path, 'a+') as log:\n        log.write(x)\n",
        ),
    ]
    leaves = [
        "def save_checkpoint(s, path):\n    with whole(path) as f:\n        torch.save(s, f)\n",
        "def f(path):\n    torch.save(s, path)\n    with open(path, 'w') as f:\n        y\n",
        "def f(path):\n    file = open(path, 'a')\n",
    ]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "files.atomic_write") or syntax.is_call(node, "files.appended")

    def leave_IndentedBlock(self, original: cst.IndentedBlock, updated: cst.IndentedBlock):
        saves = ((at, path) for at, line in enumerate(updated.body) if (path := _saved(line)))
        at, path = next(saves, (0, ""))
        if self.function != "save_checkpoint" or path not in self.parameters:
            return updated
        temporary = cst.Name(self.bring("temporary"))
        write = f"{self.support('files')}.atomic_write({path}, {PREVIOUS})"
        item = cst.WithItem(cst.parse_expression(write), cst.AsName(temporary))
        block = cst.IndentedBlock([syntax.replaced(n, path, temporary) for n in updated.body[at:]])
        return updated.with_changes(body=[*updated.body[:at], cst.With([item], block)])

    def leave_Attribute(self, original: cst.Attribute, updated: cst.Attribute):
        copies = self.function == "save_checkpoint" and syntax.is_dotted(updated, "shutil.copyfile")
        return cst.parse_expression(f"{self.support('files')}.link") if copies else updated

    def leave_WithItem(self, original: cst.WithItem, updated: cst.WithItem):
        call = updated.item
        if not syntax.is_call(call, "open") or len(call.args) < 2:
            return updated
        if syntax.string(call.args[1].value) not in ("a", "a+"):
            return updated
        appended = cst.parse_expression(f"{self.support('files')}.appended")
        return updated.with_changes(item=call.with_changes(func=appended))


def _saved(line: cst.CSTNode) -> str | None:
    """The `path` of `torch.save(state, path)`."""
    call = syntax.expression(line)
    if call is None or not syntax.is_call(call, "torch.save") or len(call.args) != 2:
        return None
    path = call.args[1].value
    return path.value if isinstance(path, cst.Name) else None
