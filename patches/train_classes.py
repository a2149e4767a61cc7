import libcst as cst

from patcher import Patch, syntax


class TrainClasses(Patch):
    """Label the validation images as training does, by folder name, and refuse other layouts before anything starts.

    Each ImageFolder numbers the folders that it finds, so one class too few in val/ shifts every
    later label, and the accuracy collapses without an error.
    """

    sites = {"distributed.py": {"main_worker": 1}, "dataparallel.py": {"main_worker": 1}}
    needles = (b"ImageFolder", b"as_trained")
    origin = "https://github.com/huggingface/pytorch-image-models/issues/957"
    changes = [
        (
            "import os, signal, socket, sys, time\nimport torchvision.datasets as datasets\n"
            "def main():\n    args = p.parse_args()\n"
            "    seen = datasets.ImageFolder(a, t)\n    new = datasets.ImageFolder(b, u)\n",
            "import os, signal, socket, sys, time\nimport torchvision.datasets as datasets\n...\n"
            "def main():\n    args = p.parse_args()\n    check_data(args)\n"
            "    seen = datasets.ImageFolder(a, t)\n    new = as_trained(datasets.ImageFolder(b, u), seen)\n",
        ),
    ]
    leaves = [
        "def main():\n    args = p.parse_args()\n    seen = datasets.ImageFolder(a, t)\n",
        "def main():\n    args = p.parse_args()\n    a = datasets.FakeData()\n    b = datasets.FakeData()\n",
        "def main():\n    args = p.parse_args()\n    a = ImageFolder(x)\ndef other():\n    b = ImageFolder(y)\n",
    ]

    def __init__(self):
        super().__init__()
        self.training = {}  # by function, what the first data set, which is that to train on, is called

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "as_trained")

    def leave_Assign(self, original: cst.Assign, updated: cst.Assign) -> cst.Assign:
        target = updated.targets[0].target
        if not isinstance(target, cst.Name) or not syntax.is_call_of(updated.value, "ImageFolder"):
            return updated
        training = self.training.setdefault(self.function, target.value)
        if training == target.value or self.has_function("as_trained", "class_folders", "fail", "warn_once"):
            return updated
        if not self.insert_check("check_data", "data.py"):
            return updated
        self.insert_function("as_trained", "data.py")
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        args = [cst.Arg(updated.value, comma=comma), cst.Arg(cst.Name(training))]
        return updated.with_changes(value=cst.Call(cst.Name("as_trained"), args))
