"""The output folder: which files of it belong to a run, and which of them a run goes on from."""

import glob
import math
import os
import shutil
import sys

from . import decode, files, owner, saved
from .network import unwrap, why_wrong_head
from .terminal import exit_with_error, program

LAST, PREVIOUS, BEST = "checkpoint.pth.tar", "checkpoint_previous.pth.tar", "model_best.pth.tar"
LOG, METRICS, ARGUMENTS = "dataparallel.csv", "metrics.jsonl", "args.json"
WEIGHTS, TRACE, EVENTS = "model_best.safetensors", "profile.json.gz", "events.out.tfevents.{}.run"
KEPT = "checkpoint_epoch_{}.pth.tar"
# All that a run writes, names and patterns, in the order in which it is moved away: without the
# last one it is gone.
FILES: "tuple[str, ...]" = (PREVIOUS, BEST, LOG, METRICS, ARGUMENTS, decode.LIST, WEIGHTS, TRACE)
FILES += (EVENTS.format("*"), KEPT.format("*"), LAST)


def add_options(parser):
    parser.add_argument(
        "--keep",
        default=0,
        type=int,
        metavar="N",
        help="also keep the checkpoints of the last N epochs, as checkpoint_epoch_12.pth.tar after "
        "12 of them (default: 0)",
    )


def keep(epochs: int, count: int):
    """Let --keep have the checkpoint after `epochs` epochs, and remove the one that is too old."""
    if count:
        files.link(LAST, KEPT.format(epochs))
        head, tail = KEPT.split("{}")
        for path in glob.glob(KEPT.format("*")):
            number = path.removeprefix(head).removesuffix(tail)
            if number.isdigit() and int(number) <= epochs - count:
                os.remove(path)


def here() -> "list[str]":
    """The checkpoint files in the output folder, whole or not."""
    return [name for name in (LAST, PREVIOUS, BEST) if os.path.lexists(name)]


def is_here(path) -> bool:
    """Whether a file is in the output folder; it may be a link to another disk."""
    folders = os.path.dirname(os.path.abspath(path)), os.path.dirname(os.path.realpath(path))
    return os.path.realpath(".") in map(os.path.realpath, folders)


def refusal(args) -> "str | None":
    """Why the run may not write here: it would replace the checkpoint of another one."""
    found = here()
    goes_on = args.resume and (args.resume == "auto" or is_here(args.resume))
    if not found or goes_on or args.overwrite or args.evaluate:
        return None
    return (
        f"{os.path.abspath(found[0])} is there already, and would be replaced: go on from it "
        "with --resume auto, write elsewhere with --output-dir, or allow it with --overwrite"
    )


def take(model, args):
    """(path, problem): the checkpoint to go on from, or None; why the run cannot begin, or None.

    Rank 0 chooses for all, so that all begin alike. Unless the run only evaluates, the folder
    is this job's from here on.
    """
    try:
        problem = None if args.evaluate else owner.take()
    except OSError as error:
        problem = f"{os.getcwd()}: cannot be locked for this job: {error.strerror}"
    problem = problem or refusal(args)  # another job may have written here meanwhile
    if problem:
        return None, problem
    path = args.resume
    if path == "auto":
        path, broken = newest(args.trust_checkpoint)
        for line in broken:
            print(f"{program()}: {line}", file=sys.stderr, flush=True)
        if broken and not path:
            return None, f"--resume auto: no checkpoint in {os.getcwd()} is whole"
        if not path:
            where = f"no checkpoint in {os.getcwd()}"
            print(f"--resume auto: {where}, starting from the beginning", flush=True)
    if args.evaluate and path is None and not getattr(args, "init", None):
        nothing = f"--evaluate: there are no weights in {os.getcwd()}"
        return None, why_wrong_head(args) if args.pretrained else nothing
    if args.evaluate:
        return path, None
    return path, lack_of_room(model, path, getattr(args, "keep", 0))


def newest(trusted: bool = False) -> "tuple[str | None, list[str]]":
    """(path, lines): the whole checkpoint here that has come furthest, or None; what is broken.

    Only the run of the first whole one counts: another run's files may have come further.
    """
    found: list[tuple[tuple[int, int], object, str]] = []
    broken: list[str] = []
    for path in here():
        try:
            state = saved.read(path, trusted)
        except ValueError as error:
            broken.append(str(error))
            continue
        if not found or state.get("run") == found[0][1]:
            found.append(((state["epoch"], state.get("step", 0)), state.get("run"), path))
    return max(found, key=lambda one: one[0])[2] if found else None, broken


def lack_of_room(model, path, keep: int = 0):
    """Why the disk cannot hold the checkpoints of a run that goes on from `path`; None if it can.

    They are the last one, the one before, the best, and one in writing; and what `keep` adds.
    """
    own = unwrap(model)
    tensors = [*own.state_dict().values(), *own.parameters()]  # momentum: one for each parameter
    needed = (4 + keep) * sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    replaced = [*here(), *glob.glob(KEPT.format("*"))] if path and is_here(path) else []
    stats = [os.stat(name) for name in replaced if os.path.exists(name)]
    room = shutil.disk_usage(".").free + sum({stat.st_ino: stat.st_size for stat in stats}.values())
    if room >= needed:
        return None
    return (
        f"{os.getcwd()}: {room / 2**20:.1f} MB free, and checkpoints take up to "
        f"{needed / 2**20:.1f} MB; choose another --output-dir"
    )


def begin(path, state):
    """Make the files here those of the run that goes on from `path` with `state`, or is new.

    Called once nothing can refuse the run any more.
    """
    if path and is_here(path):
        if path in (PREVIOUS, BEST):  # --resume auto: the next save would keep a broken one
            files.link(path, LAST)
        lengths = state.get("appended", dict.fromkeys((LOG, METRICS), math.inf))
    else:
        folder, lengths = files.move_away(FILES), {}
        if folder:
            print(f"the files of the run before are in {folder}/ now", flush=True)
    files.remove_begun(FILES)
    for name in (LOG, METRICS):
        files.cut(name, lengths.get(name, 0))
    files.adopt(LAST)


def check_in_place(run: str):
    """End the run if another one has put its checkpoint in the place of its own."""
    if files.is_own(LAST):
        return
    try:
        there = saved.read(LAST).get("run", "unknown")
    except ValueError:
        there = "unknown"
    if there != run:
        exit_with_error(
            f"{os.path.abspath(LAST)} is another run's by now ({there}, this is {run}): it stays "
            "as it is, and this job ends"
        )
