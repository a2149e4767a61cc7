import libcst as cst

from patcher import Patch, syntax


class SamplesLeft(Patch):
    """Let order and augmentation follow from seed and epoch alone, so that a resumed epoch goes on with what is left.

    Upstream draws them from generators in the training process and in each worker, which nothing can put back
    to where they were.
    """

    sites = {"distributed.py": {"main_worker": 2}, "dataparallel.py": {"main_worker": 2}}
    needles = (b"DataLoader(", b"start_epoch")
    origin = "https://github.com/pytorch/examples/issues/1194"
    changes = [
        (
            "import x\ndef f(o):\n    d = DataLoader(images, sampler=s, batch_size=3)\n    e = DataLoader(other)\n",
            "...\ndef f(o):\n    d = DataLoader(SeededImages(images), sampler=SamplesLeft(s, o), batch_size=3)\n"
            "    e = DataLoader(other)\n",
        ),
        (
            "import x\ndef f(o):\n    d = data.DataLoader(images, shuffle=True)\n",
            "...\ndef f(o):\n"
            "    d = data.DataLoader(SeededImages(images), sampler=SamplesLeft(data.RandomSampler(images), o))\n",
        ),
        (
            "import x\ndef f(o):\n    for n in range(o.start_epoch, 9):\n        g(n)\n",
            "...\ndef f(o):\n    for n in each_epoch(range(o.start_epoch, 9), o):\n        g(n)\n",
        ),
    ]
    leaves = [
        "def f(o):\n    d = DataLoader(images, shuffle=False)\n    e = DataLoader(other, shuffle=True)\n",
        "def f(o):\n    for n in range(9):\n        g(n)\n",
    ]

    def __init__(self):
        super().__init__()
        self.loaders = {}  # by function, the first one, which is that of the training data

    def done(self, node: cst.CSTNode) -> bool:
        return any(syntax.is_call(node, name) for name in ("SamplesLeft", "each_epoch"))

    def leave_For(self, original: cst.For, updated: cst.For) -> cst.For:
        epochs = updated.iter if syntax.is_call(updated.iter, "range") and updated.iter.args else None
        first = epochs.args[0].value if epochs else None
        if not isinstance(first, cst.Attribute) or first.attr.value != "start_epoch" or self.has_function("each_epoch"):
            return updated
        self.insert_function("each_epoch", "samples_left.py")
        args = [cst.Arg(epochs), cst.Arg(cst.Name(self.args))]
        return updated.with_changes(iter=cst.Call(cst.Name("each_epoch"), args))

    def leave_Call(self, original: cst.Call, updated: cst.Call) -> cst.Call:
        if not syntax.is_call_of(updated, "DataLoader"):
            return updated
        if self.loaders.setdefault(self.function, original) is not original or not updated.args:
            return updated
        images, shuffle, sampler = updated.args[0], *(syntax.argument(updated, name) for name in ("shuffle", "sampler"))
        if not isinstance(images.value, cst.Name) or self.has_function("SamplesLeft", "SeededImages", "first_step"):
            return updated
        old, order = sampler, sampler and sampler.value
        if sampler is None and shuffle is not None and syntax.is_name(shuffle.value, "True"):
            name = self.module.code_for_node(updated.func).removesuffix("DataLoader") + "RandomSampler"
            old, order = shuffle, cst.parse_expression(f"{name}({images.value.value})")
        if order is None or syntax.is_call(order, "SamplesLeft"):
            return updated
        self.insert_function("SamplesLeft", "samples_left.py")
        self.insert_function("SeededImages", "samples_left.py")
        left = cst.Call(cst.Name("SamplesLeft"), [cst.Arg(order), cst.Arg(cst.Name(self.args))])
        new = {
            id(images): images.with_changes(value=syntax.wrapped("SeededImages", images.value)),
            id(old): old.with_changes(keyword=cst.Name("sampler"), value=left),
        }
        return updated.with_changes(args=[new.get(id(arg), arg) for arg in updated.args])
