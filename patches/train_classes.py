import libcst as cst

from patcher import Patch, Place, places, syntax


class TrainClasses(Patch):
    """Label validation images as training does, by folder name; one folder less shifts labels.

    Each ImageFolder numbers the folders that it finds, so a class that val/ lacks shifts all later
    ones, and the accuracy collapses without an error. Other layouts are refused at the start.
    """

    sites = {
        "distributed.py": {"main": 1, "main_worker": 1},
        "dataparallel.py": {"main": 1, "main_worker": 1},
    }
    needles = (b"ImageFolder", b"parse_args")
    origin = "https://github.com/huggingface/pytorch-image-models/issues/957"
    changes = [
        (
            "def f(o):\n    a = ImageFolder(x, t)\n    b = DataLoader(a)\n"
            "    c = DataLoader(ImageFolder(y, u))\n",
            "def f(o):\n    a = ImageFolder(x, t)\n    b = DataLoader(a)\n"
            "    c = DataLoader(ImageFolder(y, u))\n    folders.relabel_like(c.dataset, a)\n",
        ),
        (
            "def main():\n    o = p.parse_args()\n",
            "def main():\n    o = p.parse_args()\n    folders.check(o)\n",
        ),
    ]
    leaves = [
        "def f(o):\n    a = FakeData()\n    b = DataLoader(a)\n    c = DataLoader(FakeData())\n",
        "def f(o):\n    a = ImageFolder(x)\n    b = DataLoader(a)\n",
    ]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "folders.relabel_like") or syntax.is_call(node, "folders.check")

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef):
        checked = self.insert_check(updated, "folders.check", rank=30)
        if checked is not updated or self.is_done_in(updated):
            return checked
        folders = [n for n in syntax.descendants(original) if syntax.is_call_of(n, "ImageFolder")]
        if len(folders) < 2 or not any(map(places.loader_in, original.body.body)):
            return updated
        loaders = places.loaders_in(original)
        images = places.assigned(original, places.training_images(original))
        if images is None or loaders is None:
            self.refuse(
                "it is not clear which data set is trained on, and which validated", original
            )
        line = f"{self.support('folders')}.relabel_like({loaders[1]}.dataset, {images})\n"
        return self.insert(updated, Place.LOADERS, line, rank=10)
