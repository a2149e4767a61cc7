import libcst as cst

from patcher import Patch, syntax


class PrefetchedBatches(Patch):
    """Copy the next batch to the GPU while this one is computed; upstream copies it in between.

    Its copy is queued on the stream of the computation, so the GPU computes nothing meanwhile.
    --prefetch N is the number of batches that each loading process has ready.
    """

    sites = {
        f"{name}.py": {"main_worker": 2, "train": 1, "validate": 1}
        for name in ("distributed", "dataparallel")
    }
    needles = (b"num_workers", b"def train(", b"def validate(")
    origin = "https://pytorch.org/docs/stable/notes/cuda.html#use-pinned-memory-buffers"
    needs = ("any_device", "loader_workers", "saved_steps")  # it looks for the loader in the loop
    changes = [
        (
            "def train(feed, o):\n    for i, x in enumerate(feed, 3):\n        f(x)\n",
            "def train(feed, o):\n"
            "    for i, x in enumerate(prefetch.ahead(feed, device), 3):\n        f(x)\n",
        ),
        (
            "def f(o):\n    d = DataLoader(x, num_workers=o.workers, shuffle=True)\n",
            "def f(o):\n    d = DataLoader(x, num_workers=o.workers,"
            " prefetch_factor=prefetch.depth(o), shuffle=True)\n",
        ),
    ]
    leaves = [
        "def test(feed, o):\n    for i, x in enumerate(feed):\n        f(x)\n",
        "def train(feed, o):\n    for i in range(len(feed)):\n        f(i)\n",
        "def f(o):\n    d = DataLoader(x, num_workers=8)\n",
        "def f(o):\n    d = DataLoader(x, num_workers=o.workers, prefetch_factor=4)\n",
    ]

    def done(self, node: cst.CSTNode) -> bool:
        return any(syntax.is_call(node, f"prefetch.{name}") for name in ("ahead", "depth"))

    def leave_For(self, original: cst.For, updated: cst.For):
        if self.function not in ("train", "validate") or self.is_done_in(updated.iter):
            return updated
        loader = updated.iter
        while isinstance(loader, cst.Call) and loader.args:  # `enumerate` and the like
            if syntax.is_call(loader, "len"):
                return updated
            loader = loader.args[0].value
        if not self.parameters or not syntax.is_name(loader, self.parameters[0]):
            return updated
        code = f"{self.support('prefetch')}.ahead({loader.value}, device)"
        ahead = cst.parse_expression(code)
        batches = syntax.rewritten(updated.iter, lambda old, new: ahead if old is loader else new)
        return updated.with_changes(iter=batches)

    def leave_Call(self, original: cst.Call, updated: cst.Call):
        number = syntax.argument(updated, "num_workers")
        if not syntax.is_call_of(updated, "DataLoader") or number is None:
            return updated
        obeys = syntax.is_dotted(number.value, f"{self.args}.workers")
        if not obeys or syntax.argument(updated, "prefetch_factor"):
            return updated
        self.add_options("prefetch")
        depth = cst.parse_expression(f"{self.support('prefetch')}.depth({self.args})")
        new = number.with_changes(keyword=cst.Name("prefetch_factor"), value=depth)
        at = updated.args.index(number) + 1
        return updated.with_changes(args=[*updated.args[:at], new, *updated.args[at:]])
