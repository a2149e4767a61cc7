"""One fault at a stated point of a training run: a signal, a full disk or a sleep, without an edit.

    PYTHONPATH=tests/faults FAULT='{"at": "step", "nth": 3, "rank": 1, "do": "SIGKILL"}' \
        FAULT_FOLDER=DIR torchrun --nproc_per_node=2 build/distributed.py --arch tiny ...

With FAULT_FOLDER=DIR, each process writes its id to DIR/RANK, the indices of the training images
that it reads to DIR/images.RANK, and counts these events:

    start                 the model is there, and is wrapped
    image                 a file of the training set is read
    step                  the optimizer makes a step
    validation            a loss is computed without gradients
    write NAME            a file of that name is written by torch.save
    fsync, link, copy, replace NAME   what `os` and `shutil` do to a file of that name

A temporary file, whose name has host and process in it, counts as NAME.tmp.

FAULT is JSON. `at` names an event; the fault comes with the `nth` of them (from 1) on `rank`
(default 0), before it or, if `when` says so, after it. A write or copy breaks off after `bytes` of
it. `do` is a signal, for the ranks `to` (default: this one; "agent" among them is the parent); or
`sleep`, for an hour; or `wait`, until DIR/go is there; or `raise`, an exception; or `fill`, which
leaves `bytes` of the disk free. With `rest`, no rank goes on from this event until all have agreed
where to stop. The fault comes once: DIR/fired says so, and how many steps this rank had made; a run
that is started again with the same FAULT_FOLDER is left in peace.

With FAULT_NO_LINKS the disk knows no hard links. As with NCCL, to destroy the process group takes
all ranks. The models of `tests/tiny_models` come along.
"""

import contextlib
import functools
import json
import os
import re
import runpy
import shutil
import signal
import sys
import time
from collections import Counter
from importlib.machinery import PathFinder
from pathlib import Path

seen = Counter()
steps = 0


def rank():
    return int(os.environ.get("RANK", 0))


def folder():
    return Path(os.environ["FAULT_FOLDER"])


@functools.cache
def fault():
    """What FAULT says; asked for once the process has a rank, which a forked one has late."""
    (folder() / str(rank())).write_text(str(os.getpid()))
    planned = json.loads(os.environ.get("FAULT", "{}"))
    return {} if (folder() / "fired").exists() else planned


def due(event, when):
    """Whether the fault comes now; each event asks once before and once after."""
    if "FAULT_FOLDER" not in os.environ:
        return False
    plan = fault()
    seen[event, when] += 1
    now = event, when, seen[event, when]
    if now != (plan.get("at"), plan.get("when", "before"), plan.get("nth", 1)):
        return False
    if plan.get("rank", 0) != rank():
        rest()
    return plan.get("rank", 0) == rank()


def rest():
    """Until all ranks have agreed where to stop, or this one has ended."""
    while fault().get("rest"):
        watch = sys.modules["support.stop"]._watch
        if watch and watch.settled.wait(0.05):
            break
        time.sleep(0.02)


def strike():
    plan = fault()
    (folder() / "fired").write_text(json.dumps({"steps": steps, "time": time.time()}))
    if plan["do"] == "sleep":
        time.sleep(3600)
    elif plan["do"] == "wait":
        while not (folder() / "go").exists():
            time.sleep(0.05)
    elif plan["do"] == "raise":
        raise RuntimeError("out of pretended memory")
    elif plan["do"] == "fill":
        free = shutil.disk_usage(".").free - plan["bytes"]
        Path("filler").write_bytes(bytes(free))
    else:
        to = [plan["to"]] if isinstance(plan.get("to"), str) else plan.get("to", [rank()])
        ids = [
            os.getppid() if one == "agent" else int((folder() / str(one)).read_text()) for one in to
        ]
        for one in sorted(ids, key=os.getpid().__eq__):  # this one last
            # One that has nothing to do in the last save may be gone.
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.Signals[plan["do"]])
        rest()


def around(event, function, partly=None):
    """`function` with the fault before or after it.

    `event` tells from its arguments what it is, or that it is none.
    """

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        name = event(*args, **kwargs) if callable(event) else event
        if name is None:
            return function(*args, **kwargs)
        if due(name, "before"):
            if partly:
                partly(*args)
            strike()
        result = function(*args, **kwargs)
        if due(name, "after"):
            strike()
        return result

    return wrapper


def base(path):
    return re.sub(r"(\.tar|\.csv|\.lock)\..+\.tmp$", r"\1.tmp", os.path.basename(path))


def first_bytes(source, target):
    Path(target).write_bytes(Path(source).read_bytes()[: fault().get("bytes", 0)])


class Breaking:
    """A file for torch.save that breaks off in the middle; nothing of it waits in memory."""

    def __init__(self, path, left):
        self.file, self.left = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), left

    def write(self, data):
        data = bytes(data)
        os.write(self.file, data[: self.left])
        self.left -= len(data)
        if self.left < 0:
            strike()
            raise SystemExit("a strike in the middle of a write has to kill")
        return len(data)

    def flush(self):
        pass


def spy(torch):
    def counted(step):
        @functools.wraps(step)
        def wrapper(*args, **kwargs):
            global steps
            result = step(*args, **kwargs)
            steps += 1
            return result

        return wrapper

    def save(state, path, *args, **kwargs):
        if due("write " + base(path), "before"):
            if fault()["do"] == "SIGKILL" and rank() in fault().get("to", [rank()]):
                return plain_save(state, Breaking(path, fault()["bytes"]), *args, **kwargs)
            strike()
        return plain_save(state, path, *args, **kwargs)

    def link(source, target):
        if "FAULT_NO_LINKS" in os.environ:
            raise PermissionError(1, "Operation not permitted")
        return spied_link(source, target)

    def of_fsync(number):
        return f"fsync {base(os.readlink(f'/proc/self/fd/{number}'))}"

    plain_save, torch.save = torch.save, save
    torch.optim.SGD.step = around("step", counted(torch.optim.SGD.step))
    losses, ddp = torch.nn.functional, torch.nn.parallel.DistributedDataParallel
    losses.cross_entropy = around(  # also that of a loss with a `forward` of its own
        lambda *_, **given: None if torch.is_grad_enabled() else "validation", losses.cross_entropy
    )
    ddp.__init__ = around("start", ddp.__init__)
    os.fsync = around(of_fsync, os.fsync)
    for module, name, kind, partly in (
        (os, "replace", "replace", None),
        (os, "link", "link", None),
        (shutil, "copyfile", "copy", first_bytes),
    ):
        event = functools.partial(lambda kind, _, to: f"{kind} {base(to)}", kind)
        setattr(module, name, around(event, getattr(module, name), partly))
    spied_link, os.link = os.link, link
    torch.distributed.destroy_process_group = taking_all(torch.distributed.destroy_process_group)


def spy_images(images):
    def image(self, index):
        return "image" if os.path.basename(self.root) == "train" else None

    images.ImageFolder.__getitem__ = around(image, noted(images.ImageFolder.__getitem__))


def taking_all(destroy):
    @functools.wraps(destroy)
    def wrapper(*args, **kwargs):
        if "FAULT_FOLDER" in os.environ:
            left = [folder() / f"left.{n}" for n in range(int(os.environ["WORLD_SIZE"]))]
            left[rank()].touch()
            while not all(path.exists() for path in left):
                time.sleep(0.05)
        return destroy(*args, **kwargs)

    return wrapper


def noted(get):
    @functools.wraps(get)
    def wrapper(self, index):
        if os.path.basename(self.root) == "train" and "FAULT_FOLDER" in os.environ:
            with open(folder() / f"images.{rank()}", "a") as file:
                file.write(f"{index}\n")
        return get(self, index)

    return wrapper


class SpyAfterImport:
    """Finds torch and torchvision's data sets, and has them spied on right after their import."""

    spies = {"torch": spy, "torchvision.datasets.folder": spy_images}

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        spec = PathFinder.find_spec(name, path) if name in cls.spies else None
        if spec is None:
            return None
        load = spec.loader.exec_module

        def load_and_spy(module):
            load(module)
            cls.spies[name](module)

        spec.loader.exec_module = load_and_spy
        return spec


if __name__ == "sitecustomize":
    os.environ.pop("FAKE_GPUS", None)
    models = Path(__file__).resolve().parent.parent / "tiny_models" / "sitecustomize.py"
    runpy.run_path(str(models), run_name="sitecustomize")
    sys.meta_path.insert(0, SpyAfterImport)
