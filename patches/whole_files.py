import libcst as cst

from patcher import Patch, syntax

PREVIOUS = "'checkpoint_previous.pth.tar'"


class WholeFiles(Patch):
    """Replace checkpoint, best copy and csv by whole files: a run that is killed while it writes leaves the old ones.

    Upstream writes in place and then copies, so that a kill or a full disk in the middle of it costs both.
    """

    sites = {"distributed.py": {"save_checkpoint": 1}, "dataparallel.py": {"save_checkpoint": 1, "main_worker": 1}}
    needles = (b"torch.save(", b"open(", b"appended(")
    origin = "https://github.com/Lightning-AI/pytorch-lightning/issues/688"
    changes = [
        (
            "import contextlib, os, shutil, signal, socket, sys, time\n"
            "def save_checkpoint(s, best, path):\n"
            "    torch.save(s, path)\n    if best:\n        shutil.copyfile(path, 'b')\n",
            "import contextlib, os, shutil, signal, socket, sys, time\n...\n"
            "def save_checkpoint(s, best, path):\n"
            f"    with whole_file(path, {PREVIOUS}) as temporary:\n"
            "        torch.save(s, temporary)\n        if best:\n            link_whole(temporary, 'b')\n",
        ),
        (
            "import contextlib, os, shutil, signal, socket, sys, time\ndef f():\n"
            "    with open('log', 'a', newline='') as log:\n        log.write(x)\n",
            "import contextlib, os, shutil, signal, socket, sys, time\n...\ndef f():\n"
            "    with appended('log', 'a', newline='') as log:\n        log.write(x)\n",
        ),
    ]
    leaves = [
        "def save_checkpoint(s, path):\n    with whole(path) as temporary:\n        torch.save(s, temporary)\n",
        "def f(path):\n    torch.save(s, path)\n    with open(path, 'w') as file:\n        file.write(x)\n",
        "def f(path):\n    file = open(path, 'a')\n",
    ]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "whole_file") or syntax.is_call(node, "appended")

    def leave_IndentedBlock(self, original: cst.IndentedBlock, updated: cst.IndentedBlock) -> cst.IndentedBlock:
        calls = [syntax.expression(line) for line in updated.body]
        saves = [i for i, call in enumerate(calls) if call is not None and syntax.is_call(call, "torch.save")]
        path = calls[saves[0]].args[1].value if saves and len(calls[saves[0]].args) == 2 else None
        if self.function != "save_checkpoint" or getattr(path, "value", None) not in self.parameters:
            return updated
        if self.has_function("whole_file", "link_whole", "flush", "fail"):
            return updated
        self.insert_function("whole_file", "whole_file.py")
        code = f"with whole_file({path.value}, {PREVIOUS}) as temporary:\n    pass\n"
        lines = [line.visit(_Temporary(path.value)) for line in updated.body[saves[0] :]]
        guarded = cst.parse_statement(code).with_changes(body=cst.IndentedBlock(lines))
        return updated.with_changes(body=[*updated.body[: saves[0]], guarded])

    def leave_WithItem(self, original: cst.WithItem, updated: cst.WithItem) -> cst.WithItem:
        opens = syntax.is_call(updated.item, "open") and len(updated.item.args) > 1
        if not opens or syntax.string(updated.item.args[1].value) != "a" or self.has_function("appended"):
            return updated
        self.insert_function("appended", "whole_file.py")
        return updated.with_changes(item=updated.item.with_changes(func=cst.Name("appended")))


class _Temporary(cst.CSTTransformer):
    """Puts the temporary name in the place of the final one, and a link in the place of a copy."""

    def __init__(self, path: str):
        super().__init__()
        self.path = path

    def leave_Name(self, original: cst.Name, updated: cst.Name) -> cst.Name:
        return cst.Name("temporary") if updated.value == self.path else updated

    def leave_Call(self, original: cst.Call, updated: cst.Call) -> cst.Call:
        copies = syntax.is_call(updated, "shutil.copyfile")
        return updated.with_changes(func=cst.Name("link_whole")) if copies else updated
