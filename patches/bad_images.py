import libcst as cst

from patcher import Patch, places, syntax


class BadImages(Patch):
    """Name an image that cannot be decoded, or skip up to N of them; upstream names no file.

    Its traceback comes from a worker. The option is --skip-bad-images N, for training: validation
    skips nothing, since its accuracy would be that of another set.
    """

    sites = {"distributed.py": {"main_worker": 2}, "dataparallel.py": {"main_worker": 2}}
    needles = (b"ImageFolder",)
    origin = "https://github.com/python-pillow/Pillow/issues/1510"
    changes = [
        (
            "def f(o):\n    a = ImageFolder(x, t)\n    b = DataLoader(ImageFolder(y,\n  u))\n",
            "def f(o):\n    a = ImageFolder(x, t, loader=decode.skipping(o.skip_bad_images))\n"
            "    b = DataLoader(ImageFolder(y,\n  u,\n  loader=decode.load_image))\n",
        )
    ]
    leaves = [
        "def f(o):\n    seen = datasets.ImageFolder(a, loader=l)\n",
        "def f(o):\n    seen = datasets.FakeData(a)\n",
    ]

    def __init__(self):
        super().__init__()
        self.training: cst.Call | None = None  # the training images of the function at hand

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_dotted(node, "decode.load_image")

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        if "." not in self.function:  # a nested function loads nothing
            self.training = places.training_images(node)

    def leave_Call(self, original: cst.Call, updated: cst.Call):
        if not syntax.is_call_of(updated, "ImageFolder") or syntax.argument(updated, "loader"):
            return updated
        if self.training is None:
            self.refuse("no data set is that of the loader that `train` gets", original)
        self.add_options(self.support("decode"))
        training = original is self.training
        code = f"decode.skipping({self.args}.skip_bad_images)" if training else "decode.load_image"
        return syntax.with_keyword(updated, "loader", cst.parse_expression(code))
