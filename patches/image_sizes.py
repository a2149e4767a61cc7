import libcst as cst

from patcher import Patch, syntax

# What upstream has, and the option that takes its place; whether it resizes.
SIZES = {
    "RandomResizedCrop": (224, "image_size", True),
    "Resize": (256, "val_resize", True),
    "CenterCrop": (224, "val_crop", False),
}


class ImageSizes(Patch):
    """Train and validate at the size that the model is made for; upstream knows 224 alone.

    By default it is that of torchvision's weights for the model: 299 for inception_v3. A vision
    transformer is built for --image-size, so it trains at 384, too.
    """

    sites = {
        "distributed.py": {"main": 1, "main_worker": 3},
        "dataparallel.py": {"main": 1, "main_worker": 3},
    }
    needles = (b"RandomResizedCrop", b"CenterCrop", b"sizes.", b"parse_args")
    origin = "https://docs.pytorch.org/vision/stable/models.html#using-the-pre-trained-models"
    changes = [
        (
            "def f(a):\n    t = Compose([RandomResizedCrop(224), CenterCrop(224)])\n",
            "def f(a):\n    t = Compose([RandomResizedCrop(a.image_size, "
            "interpolation=sizes.mode(a)), CenterCrop(a.val_crop)])\n",
        ),
        (
            "def f(a):\n    t = [transforms.Resize(256), CenterCrop(size=224)]\n",
            "def f(a):\n    t = [transforms.Resize(a.val_resize, "
            "interpolation=sizes.mode(a)), CenterCrop(size=a.val_crop)]\n",
        ),
        (
            "def main():\n    o = p.parse_args()\n",
            "def main():\n    o = p.parse_args()\n    sizes.check(o)\n",
        ),
    ]
    leaves = [
        "def f(a):\n    t = [CenterCrop((224, 224)), RandomResizedCrop(n), Resize(256, mode)]\n",
        "def f(a):\n    t = [CenterCrop, Pad(224), model.resize(256)]\n",
    ]
    needs = ("model_for_data",)  # its check tries the model with images of this size

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "sizes.mode") or syntax.is_call(node, "sizes.check")

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef):
        return self.insert_check(updated, "sizes.check", rank=35, options=True)

    def leave_Call(self, original: cst.Call, updated: cst.Call):
        for name, (known, option, resizes) in SIZES.items():
            if not syntax.is_call_of(updated, name) or len(updated.args) != 1:
                continue
            given = updated.args[0]
            size = syntax.integer(given.value)
            if size is None or (given.keyword and not syntax.is_name(given.keyword, "size")):
                return updated
            if size != known:
                self.refuse(f"expected {name}({known}), found {size}: see UPSTREAM in sizes.py")
            value = cst.parse_expression(f"{self.args}.{option}")
            updated = updated.with_changes(args=[given.with_changes(value=value)])
            if resizes:
                mode = cst.parse_expression(f"{self.support('sizes')}.mode({self.args})")
                updated = syntax.with_keyword(updated, "interpolation", mode)
        return updated
