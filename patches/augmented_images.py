from collections.abc import Sequence

import libcst as cst

from patcher import Patch, syntax


class AugmentedImages(Patch):
    """Let training images be changed at random; upstream has crops and flips alone.

    A vision transformer learns a small data set by heart without it. torchvision's own transforms,
    where its recipes have them: --augment after the flip, --random-erase after all others.
    """

    sites = {"distributed.py": {"main_worker": 1}, "dataparallel.py": {"main_worker": 1}}
    needles = (b"RandomHorizontalFlip", b"augmentation.")
    origin = "https://docs.pytorch.org/vision/stable/transforms.html#auto-augmentation"
    changes = [
        (
            "def f(a):\n    t = Compose([Crop(1), RandomHorizontalFlip(), ToTensor(), norm])\n",
            "def f(a):\n    t = Compose([Crop(1), RandomHorizontalFlip(), "
            "*augmentation.of_image(a), ToTensor(), norm, *augmentation.of_tensor(a)])\n",
        )
    ]
    leaves = [
        "def f(a):\n    t = Compose([Crop(1), ToTensor(), norm])\n",
        "def f(a):\n    t = [RandomHorizontalFlip(), ToTensor()]\n",
        "def f(a):\n    t = Compose(RandomHorizontalFlip())\n",
    ]

    def done(self, node: cst.CSTNode) -> bool:
        calls = ("augmentation.of_image", "augmentation.of_tensor")
        return any(syntax.is_call(node, name) for name in calls)

    def leave_Call(self, original: cst.Call, updated: cst.Call):
        steps = updated.args[0].value if updated.args else None
        if not syntax.is_call_of(updated, "Compose") or not isinstance(steps, cst.List):
            return updated
        calls = [element.value for element in steps.elements]
        flips = [
            at for at, one in enumerate(calls) if syntax.is_call_of(one, "RandomHorizontalFlip")
        ]
        if not flips or self.is_done_in(updated):
            return updated
        (flip, *others), next_one = flips, calls[flips[0] + 1 : flips[0] + 2]
        if others or not (next_one and syntax.is_call_of(next_one[0], "ToTensor")):
            self.refuse("expected one RandomHorizontalFlip, and ToTensor below it", original)
        elements = self.with_star(steps.elements, flip, "of_image")
        elements = self.with_star(elements, len(elements) - 1, "of_tensor")
        return updated.with_deep_changes(steps, elements=elements)

    def with_star(self, elements: Sequence[cst.BaseElement], at: int, name: str):
        """The elements with `*augmentation.<name>(args)` below number `at`, laid out as that is."""
        module = self.add_options("augmentation")
        value = cst.parse_expression(f"{module}.{name}({self.args})")
        before, old = elements[at - 1], elements[at]
        new = cst.StarredElement(value, comma=old.comma)
        comma = old.comma if at + 1 < len(elements) else before.comma
        return [*elements[:at], old.with_changes(comma=comma), new, *elements[at + 1 :]]
