"""What the processes of a job have to agree on: they compare notes once, before any of them trains.

Each process works out for itself how large its batch is, how many steps there are, and what the
options mean. If two of them differ there, the job hangs, or trains something else.
"""

import collections
import datetime
import json
import os
import socket
import sys
import time
import uuid
import zlib
from typing import Any

import torch
import torch.distributed as dist
import torchvision

from . import ranks
from .folders import class_names
from .terminal import exit_with_error

# May be another one on each host: paths, and what the host has.
OWN = {"data", "init", "output_dir", "resume", "local_rank", "workers"}

_store = None  # over which the ranks have met; the keys are this start's own
_has_own_gpu = False


def meet(args):
    """Compare notes with all ranks, and end the job on each host if they differ. Collective."""
    global _store, _has_own_gpu
    if ranks.world_size() == 1:
        return
    mine = note(args)
    wait = datetime.timedelta(seconds=args.timeout + 20)
    try:
        shared = next(dist.rendezvous("env://", timeout=wait))[0]
        start, answer = exchange(shared, mine, wait.total_seconds())
    except RuntimeError as error:
        place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        reason = str(error).partition("\n")[0]
        exit_with_error(f"the ranks have not met at {place}, where rank 0 should be: {reason}")
    if answer["wrong"]:
        try:
            exit_with_error(answer["wrong"])
        finally:
            time.sleep(1)  # each host speaks before any rank ends: a launcher then ends the others
    _store, _has_own_gpu = dist.PrefixStore(start, shared), answer["own_gpu"]


def store():
    """The store over which the ranks have met, with keys of this start alone; None for one rank."""
    return _store


def has_own_gpu() -> bool:
    """Whether each process of this host sees one GPU, and each another one."""
    return _has_own_gpu


def note(args) -> "dict[str, Any]":
    """What this rank knows of the job: the host it is on, its GPU, and by name what must agree."""
    classes = class_names(os.path.join(args.data, "train"))
    names = zlib.crc32("\0".join(classes).encode("utf-8", "surrogateescape"))
    agreed = {
        "processes in the job": ranks.world_size(),
        "processes on the host": ranks.local_world_size(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "build of the script": sys.modules[__package__].build_of(__file__),
        "classes in train/": f"{len(classes)} (names {names:08x})",
    }
    given = sorted(set(vars(args)) - OWN)
    agreed.update({f"--{name.replace('_', '-')}": str(getattr(args, name)) for name in given})
    return {"host": socket.gethostname(), "gpu": only_gpu(), "agreed": agreed}


def only_gpu() -> "str | None":
    """What tells the GPU from all others, if this process sees a single one."""
    if torch.cuda.device_count() != 1:
        return None
    uuid = getattr(torch.cuda.get_device_properties(0), "uuid", None)  # not in older torch
    return str(uuid or os.environ.get("CUDA_VISIBLE_DEVICES"))


def judged(notes) -> "list[dict[str, Any]]":
    """An answer for each rank, by what all of them have noted."""
    wrong = []
    for what, first in notes[0]["agreed"].items():
        others = [(n, one) for n, one in enumerate(notes) if one["agreed"].get(what) != first]
        if others:
            rank, other = others[0]
            value = other["agreed"].get(what)
            there = f"{value} on rank {rank} ({other['host']})"
            wrong.append(f"{what}: {first} on rank 0 ({notes[0]['host']}), {there}")
    on_host = collections.Counter(one["host"] for one in notes)
    size = notes[0]["agreed"]["processes on the host"]
    for host, count in on_host.items():
        if count % size and not wrong:
            wrong.append(f"processes on the host {host}: {count}, and LOCAL_WORLD_SIZE is {size}")
    gpus = collections.defaultdict(list)
    for one in notes:
        gpus[one["host"]].append(one["gpu"])
    own = {host: None not in seen and len({*seen}) == len(seen) for host, seen in gpus.items()}
    why = "the ranks of this job differ: " + "; ".join(wrong) if wrong else None
    return [{"wrong": why, "own_gpu": own[one["host"]]} for one in notes]


def exchange(shared, mine: "dict[str, Any]", timeout: float):
    """(start, answer): an id of this start of the job, which all ranks get, and rank 0's answer.

    A launcher may start the ranks again on a store that still holds what those before have said.
    So an answer counts with the id of the process that it is for, and all go on once each rank has
    said that it has heard of this start.
    """
    me, world, own = ranks.rank(), ranks.world_size(), uuid.uuid4().hex
    say(shared, f"note/{me}", [own, mine])
    end, heard = time.monotonic() + timeout, None
    while time.monotonic() < end:
        if me == 0:
            heard = answer_all(shared, world, heard)
        to, start, answer = said(shared, f"answer/{me}") or (None, None, None)
        if to == own:
            say(shared, f"heard/{me}", start)
            if said(shared, "start") == start:
                return start, answer
        time.sleep(0.05)
    missing = [str(rank) for rank in range(world) if not said(shared, f"note/{rank}")]
    raise RuntimeError(f"rank {', '.join(missing) or '0'} has not come within {timeout:g} s")


def answer_all(shared, world: int, heard):
    """On rank 0: answer each rank once all have said something, and the new ones again."""
    notes = [said(shared, f"note/{rank}") for rank in range(world)]
    if None in notes:
        return heard
    start = f"{zlib.crc32(repr([own for own, _ in notes]).encode()):08x}"
    if start != heard:
        answers = judged([one for _, one in notes])
        for rank, ((own, _), answer) in enumerate(zip(notes, answers)):
            say(shared, f"answer/{rank}", [own, start, answer])
    elif all(said(shared, f"heard/{rank}") == start for rank in range(world)):
        say(shared, "start", start)
    return start


def say(shared, key: str, value):
    shared.set(key, json.dumps(value))


def said(shared, key: str):
    """What has been said under this key, or None."""
    return json.loads(shared.get(key)) if shared.check([key]) else None
