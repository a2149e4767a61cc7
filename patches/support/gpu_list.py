"""The option --gpus, and the list of GPUs that it asks for.

Without torch: the patch `configurable_gpus` reads its own option with it, when a script is built.
"""


def add_options(parser):
    parser.add_argument(
        "--gpus",
        default=None,
        metavar="IDS",
        help="GPUs to use, for example 0,2 or 0-7; the first one holds the model and gathers "
        "the outputs (default: every visible GPU)",
    )


def gpu_ids(spec: str) -> "list[int]":
    """The GPU ids in a string such as `0,2` or `0-3,7`, in the order given.

    Raises ValueError if it is not such a list, or if an id is in it twice.
    """
    ids: list[int] = []
    for part in spec.split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last) < 1024):
            raise ValueError(f"expected GPU ids such as 0,2 or 0-3,7, found {spec!r}")
        ids.extend(range(int(first), int(last) + 1))
    twice = sorted({i for i in ids if ids.count(i) > 1})
    if twice:
        raise ValueError(f"GPU {twice[0]} is named twice in {spec!r}")
    return ids


def select_gpus(spec, parser, visible: int, optional=False) -> "list[int]":
    """The GPU ids that `--gpus` asks for, the home device first; all `visible` ones if it is None.

    Ends the program with one line and status 2 if they cannot be had. If they are `optional`,
    there may be no GPU at all, unless one was asked for.
    """
    try:
        gpus = list(range(visible)) if spec is None else gpu_ids(spec)
        if not visible and not (optional and spec is None):
            raise ValueError(
                "no GPU is visible to this process: see nvidia-smi and CUDA_VISIBLE_DEVICES"
            )
        if max(gpus, default=-1) >= visible:
            raise ValueError(
                f"GPU {max(gpus)} was asked for, {visible} visible: 0 to {visible - 1}"
            )
    except ValueError as error:
        parser.exit(2, f"{parser.prog}: error: --gpus: {error}\n")
    return gpus
