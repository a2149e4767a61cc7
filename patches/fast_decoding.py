import libcst as cst

from patcher import Patch, Place, places, syntax


class FastDecoding(Patch):
    """Load images as bytes and normalise them on the device; upstream makes floats on the CPU.

    Those are four times as many bytes, and Pillow decodes all of an image however little of it is
    needed. --exact-transforms does what upstream does.
    """

    sites = {
        f"{name}.py": {"main_worker": 1, "train": 1, "validate": 1}
        for name in ("distributed", "dataparallel")
    }
    needles = (b"ImageFolder", b"def train(", b"def validate(")
    origin = "https://docs.pytorch.org/vision/stable/transforms.html#performance-considerations"
    needs = ("bad_images",)  # its loader says what becomes of a file that cannot be decoded
    changes = [
        (
            "def f(o):\n    a = DataLoader(ImageFolder(x, t))\n"
            "    b = DataLoader(ImageFolder(y, u))\n    train(a)\n",
            "def f(o):\n    a = DataLoader(ImageFolder(x, t))\n"
            "    b = DataLoader(ImageFolder(y, u))\n    pixels.faster(a, b, o)\n    train(a)\n",
        ),
        (
            "def train(feed, o):\n    for i, (x, y) in enumerate(feed, 3):\n"
            "        x = x.cuda(0, non_blocking=True)\n        y = y.cuda(0)\n",
            "def train(feed, o):\n    for i, (x, y) in enumerate(feed, 3):\n"
            "        x = pixels.normalized(x.cuda(0, non_blocking=True))\n        y = y.cuda(0)\n",
        ),
        (
            "def validate(feed, o):\n    for x, y in feed:\n        x = x.to(device)\n",
            "def validate(feed, o):\n    for x, y in feed:\n"
            "        x = pixels.normalized(x.to(device))\n",
        ),
    ]
    leaves = [
        "def f(o):\n    a = DataLoader(FakeData(x))\n    b = DataLoader(y)\n    train(a)\n",
        "def test(feed, o):\n    for x, y in feed:\n        x = x.to(device)\n",
        "def train(d, o):\n    for x, y in d:\n        z = x.to(device)\n        x = x.half()\n",
    ]

    def __init__(self):
        super().__init__()
        self.inputs: str | None = None  # what the loop at hand calls the images of a batch

    def done(self, node: cst.CSTNode) -> bool:
        return any(syntax.is_call(node, f"pixels.{name}") for name in ("faster", "normalized"))

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        loops = self.function in ("train", "validate")
        loop = next(filter(places.is_loop(node), syntax.descendants(node)), None) if loops else None
        self.inputs = _images(loop.target) if isinstance(loop, cst.For) else None

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef):
        nodes = syntax.descendants(original)
        if self.is_done_in(updated) or not any(syntax.is_call_of(n, "ImageFolder") for n in nodes):
            return updated
        if not any(map(places.loader_in, original.body.body)):
            return updated
        loaders = places.loaders_in(original)
        if loaders is None:
            self.refuse("it is not clear which loader trains, and which one validates", original)
        line = f"{self.add_options('pixels')}.faster({', '.join(loaders)}, {self.args})\n"
        return self.insert(updated, Place.LOADERS, line, rank=15)

    def leave_Assign(self, original: cst.Assign, updated: cst.Assign):
        name, value = syntax.binding(updated) or ("", None)
        if name != self.inputs or not isinstance(value, cst.Call):
            return updated
        moves = syntax.is_method_call(value, "to") or syntax.is_method_call(value, "cuda")
        if not moves or not syntax.is_name(syntax.receiver(value), name):
            return updated
        normalized = f"{self.support('pixels')}.normalized"
        return updated.with_changes(value=syntax.wrapped(normalized, value))


def _images(target: cst.BaseExpression) -> str | None:
    """The `x` of `for i, (x, y) in ...` or `for x, y in ...`."""
    while isinstance(target, cst.Tuple):
        values = [element.value for element in target.elements]
        target = next((value for value in values if isinstance(value, cst.Tuple)), values[0])
    return target.value if isinstance(target, cst.Name) else None
