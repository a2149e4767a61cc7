import libcst as cst

from patcher import Patch, Place, places, syntax


class Recipes(Patch):
    """Give all settings of a published training by one name; upstream's defaults train no ViT.

    Its 90 epochs of SGD, a tenth of the rate after each 30, are for a ResNet of 2015. With --recipe
    each value that the command line does not have is the recipe's; a line says what is in force,
    and args.json in the output folder keeps it.
    """

    sites = {
        f"{name}.py": {"main": 1, "main_worker": 1} for name in ("distributed", "dataparallel")
    }
    needles = (*places.MAKES_OPTIMIZER, b"parse_args")
    origin = "https://github.com/pytorch/vision/tree/main/references/classification"
    # The first two for where it writes; its tables name an option of each of the others.
    needs = (
        *("output_dir", "resume", "optimizer_choice", "scheduled_rate", "clipped_gradients"),
        *("augmented_images", "image_sizes", "model_options", "mixed_images", "smoothed_labels"),
        *("averaged_weights", "repeated_images"),
    )
    changes = [
        (
            "def main():\n    o = p.parse_args()\n",
            "def main():\n    o = p.parse_args()\n    recipes.apply(parser, o)\n",
        ),
        (
            "def f(o):\n    sgd = torch.optim.SGD(net.parameters(), 1)\n",
            "def f(o):\n    sgd = torch.optim.SGD(net.parameters(), 1)\n    recipes.save(o)\n",
        ),
    ]
    leaves = [
        "def main():\n    go(p.parse_args())\n",
        "def f(o):\n    sgd = optim.SGD(net.parameters(), 1)\n",
    ]

    def done(self, node: cst.CSTNode) -> bool:
        return any(syntax.is_call(node, f"recipes.{name}") for name in ("apply", "save"))

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef):
        if self.is_done_in(updated):
            return updated
        args = places.parsed_into(updated)
        if args is not None:
            call = f"{self.add_options('recipes')}.apply({self.parser_name()}, {args})\n"
            updated = self.insert(updated, Place.PARSED, call, rank=5)
        if places.optimizer_in(updated) is not None:
            call = f"{self.support('recipes')}.save({self.args})\n"
            updated = self.insert(updated, Place.OPTIMIZER, call, rank=22)
        return updated
