import libcst as cst

from patcher import Patch, syntax


class BadImages(Patch):
    """Name the file that cannot be decoded, and with --skip-bad-images N go on without it.

    Upstream ends in a decoder's traceback from a worker that says which format it is not, and not which
    file it was.  Validation skips nothing: its accuracy would be that of another set.
    """

    sites = {"distributed.py": {"main_worker": 2}, "dataparallel.py": {"main_worker": 2}}
    needles = (b"ImageFolder",)
    origin = "https://github.com/python-pillow/Pillow/issues/1510"
    changes = [
        (
            "import contextlib, functools, os, signal, socket, sys, time\n"
            "import torchvision.datasets as datasets\np.add_argument('-x')\n"
            "def main():\n    o = p.parse_args()\n    seen = ImageFolder(a, t)\n",
            "import contextlib, functools, os, signal, socket, sys, time\n"
            "import torchvision.datasets as datasets\np.add_argument('-x')\n"
            "...\ndef main():\n    o = p.parse_args()\n    check_images(o)\n"
            "    seen = ImageFolder(a, t, loader=functools.partial(load_image, skip=o.skip_bad_images))\n",
        ),
        (
            "import contextlib, os, signal, socket, sys, time\n"
            "import torchvision.datasets as datasets\np.add_argument('-x')\n"
            "def main():\n    args = p.parse_args()\n"
            "    seen = datasets.ImageFolder(a, t, loader=l)\n    new = datasets.ImageFolder(b,\n      u)\n",
            "import contextlib, os, signal, socket, sys, time\n"
            "import torchvision.datasets as datasets\np.add_argument('-x')\n...\n"
            "def main():\n    args = p.parse_args()\n    check_images(args)\n"
            "    seen = datasets.ImageFolder(a, t, loader=l)\n"
            "    new = datasets.ImageFolder(b,\n      u,\n      loader=load_image)\n",
        ),
    ]
    leaves = [
        "def main():\n    args = p.parse_args()\n    seen = datasets.ImageFolder(a, loader=l)\n",
        "def main():\n    args = p.parse_args()\n    seen = datasets.FakeData(a)\n",
        "seen = datasets.ImageFolder(a, t)\n",
    ]

    def __init__(self):
        super().__init__()
        self.training = {}  # by function, the first data set, which is that to train on

    def done(self, node: cst.CSTNode) -> bool:
        loader = syntax.argument(node, "loader") if syntax.is_call_of(node, "ImageFolder") else None
        return loader is not None and any(syntax.is_name(n, "load_image") for n in syntax.descendants(loader))

    def leave_Call(self, original: cst.Call, updated: cst.Call) -> cst.Call:
        if not syntax.is_call_of(updated, "ImageFolder"):
            return updated
        training = self.training.setdefault(self.function, original) is original
        if syntax.argument(updated, "loader") or self.has_function("load_image", "note_bad_image", "fail"):
            return updated
        if self.has_option("--skip-bad-images") or not self.insert_check("check_images", "images.py"):
            return updated
        self.insert_option("--skip-bad-images", "images.py", self.parser_name())
        self.insert_function("load_image", "images.py")
        code = "load_image"
        if training:
            code = f"{self.module_name('functools')}.partial(load_image, skip={self.args}.skip_bad_images)"
        return syntax.with_argument(updated, "loader", cst.parse_expression(code))
