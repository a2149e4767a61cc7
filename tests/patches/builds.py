"""Call the functions of a built script without GPUs, other ranks or real images.

A purpose is a function `serves(distributed, dataparallel, monkeypatch)` in `test_NAME.py`.  It gets
both built scripts as modules, calls what the patch is for, and fails if that does not work:

    data_set(train="abc", val="abc")       a folder of classes
    parse(script, monkeypatch, *argv)      the arguments, as `main` hands them to `main_worker`
    run_worker(script, monkeypatch, *argv) runs `main_worker`, with stand-ins for training
    run_loop(script, "train", ...)         runs `train` or `validate` on batches from `guesses`
    call(function, ...)                    calls any other function, whatever parameters it takes
"""

import argparse
import contextlib
import importlib
import inspect
import os
import signal
import sys
import tempfile
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import load
from rendering import write

MISSES = (AssertionError, AttributeError, RuntimeError, SystemExit, pytest.fail.Exception)


def data_set(train: str = "abc", val: str = "abc") -> str:
    """A data set of these classes, with one file in each that only looks like an image."""
    folder = Path(tempfile.mkdtemp())
    for name in [f"train/{name}" for name in train] + [f"val/{name}" for name in val]:
        (folder / name).mkdir(parents=True)
        (folder / name / "0.jpg").touch()
    return str(folder)


def call(function, *first, **named):
    """Call a function with `first`, then what it takes of `named` (else 0), then `args`.

    Which parameters there are in between is a matter of the patches.
    """
    between = [*inspect.signature(function).parameters][len(first) : -1]
    return function(*first, *(named.get(name, 0) for name in between), named["args"])


def parse(module, monkeypatch, *argv) -> argparse.Namespace:
    """The arguments as `main()` hands them to `main_worker`; this host has four GPUs."""
    handed = []
    monkeypatch.setattr("sys.argv", [f"{module.__name__}.py", "--data", data_set(), *argv])
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)

    def main_worker(*given, **named):
        handed.append(named["args"] if named else given[-1])

    monkeypatch.setattr(module, "main_worker", main_worker)
    module.main()
    return handed[0]


def run_worker(module, monkeypatch, *argv, rank=0, world=1) -> SimpleNamespace:
    """Run `main()` and `main_worker()` as one of `world` ranks on this host.

    The model is a line.  Without `--epochs` nothing is trained.  Returns the `loaders` for training
    and validation, each with its `keywords`; what the optimizer got as `parameters`; the calls of
    `train`, `validate` and `save_checkpoint` as `trained`, `validated` and `saved`.
    """
    seen = SimpleNamespace(loaders=[], parameters=[], trained=[], validated=[], saved=[])
    sgd = torch.optim.SGD

    class Loader(torch.utils.data.DataLoader):
        def __init__(self, dataset, **keywords):
            super().__init__(dataset, **keywords)
            self.keywords = keywords
            seen.loaders.append(self)

    def optimizer(parameters, *args, **kwargs):
        seen.parameters = list(parameters)
        return sgd(seen.parameters, *args, **kwargs)

    def line(*args, num_classes=1000, **kwargs):
        return torch.nn.Linear(1, num_classes)

    with monkeypatch.context() as context:
        if world > 1:
            ids = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world}
            for name, value in (ids | {"MASTER_ADDR": "localhost", "MASTER_PORT": 1}).items():
                context.setenv(name, str(value))
        with context.context() as main:
            args = parse(module, main, *argv)
        vars(args).update(local_rank=rank)
        if "--epochs" not in argv:
            args.epochs = 0
        play_other_ranks(context)
        for name, value in {
            "torch.optim.SGD": optimizer,
            "torch.distributed.init_process_group": lambda *args, **kwargs: None,
            "torch.distributed.is_initialized": lambda: True,
            "torch.distributed.get_world_size": lambda *group: world,
            "torch.distributed.get_rank": lambda *group: rank,
            "torch.distributed.destroy_process_group": lambda: None,
            "torch.nn.parallel.DistributedDataParallel": wrapped,
            "torch.nn.DataParallel": wrapped,
            "torch.cuda.set_device": lambda device: None,
            "torch.nn.Module.cuda": lambda self, device=None: self,
            "torch.utils.data.DataLoader": Loader,
            "torchvision.models.get_model": line,
        }.items():
            context.setattr(name, value)
        context.setitem(module.models.__dict__, args.arch, line)
        context.setattr(module, "train", lambda *given: seen.trained.append(given))
        context.setattr(module, "validate", lambda *given: seen.validated.append(given) or 0.0)
        context.setattr(module, "save_checkpoint", lambda *given: seen.saved.append(given))
        first = (
            [[] if hasattr(module, "devices") else [0]] if module.__name__ == "dataparallel" else []
        )
        gpus = 8 if world > 1 else 1  # upstream splits the batch by these, whoever uses them
        call(module.main_worker, *first, args=args, local_rank=rank, nprocs=gpus)
    assert len(seen.loaders) == 2
    return seen


def wrapped(model, **kwargs):
    """A model under the name `module`, as wrappers for several devices have it."""
    return torch.nn.Sequential(OrderedDict(module=model))


def play_other_ranks(monkeypatch) -> None:
    """Let nothing wait for other ranks: they have what this one has."""

    def all_gather_object(parts, part):
        parts[:] = [part] * len(parts)

    for name, value in {
        "torch.distributed.broadcast_object_list": lambda objects, source: None,
        "torch.distributed.all_gather_object": all_gather_object,
        "torch.distributed.all_reduce": lambda *args, **kwargs: None,
        "torch.distributed.barrier": lambda: None,
        "support.stop.watch": lambda timeout: None,
        "support.owner.take": lambda: None,
        "support.owner.name_run": lambda run: None,
    }.items():
        if name.rpartition(".")[0] in sys.modules:
            monkeypatch.setattr(name, value)


def run_loop(module, name, monkeypatch, model, batches, args=None, ranks=1, watch=None):
    """What `train` or `validate` returns for these batches, and its calls of the process group.

    `args` has values for the parsed arguments. Of `ranks` ranks this is one, and the others have the same numbers.
    """
    calls = []

    def all_reduce(tensor, *args, **kwargs):
        calls.append("all_reduce")
        tensor.mul_(ranks)

    def all_gather_object(parts, part):
        calls.append("all_gather_object")
        parts[:] = [part] * ranks

    def accuracy(output, target, topk):  # that of the script is another patch's matter
        hits = (output.argmax(1) == target).sum()
        return [torch.tensor([100.0 / len(target)]) * hits] * len(topk)

    play_other_ranks(monkeypatch)
    monkeypatch.setattr(module, "accuracy", accuracy)
    for patched, value in {
        "torch.Tensor.cuda": lambda self, *args, **kwargs: self,
        "torch.distributed.barrier": lambda: calls.append("barrier"),
        "torch.distributed.is_initialized": lambda: ranks > 1,
        "torch.distributed.get_world_size": lambda *group: ranks,
        "torch.distributed.all_reduce": all_reduce,
        "torch.distributed.all_gather_object": all_gather_object,
    }.items():
        monkeypatch.setattr(patched, value)
    optimizer = torch.optim.SGD(model.parameters(), 0.25) if list(model.parameters()) else None
    given = {"print_freq": 10, "nprocs": ranks, "data": "", "batch_size": 4, "epochs": 1}
    given |= {"local_rank": 0, "seed": 0, **(args or {})}
    args = argparse.Namespace(**vars(module.parser.parse_args([])) | given)
    more = {"device": torch.device("cpu"), "args": args}
    if hasattr(module, "checkpoint"):
        more["run"] = module.checkpoint.Run(model, optimizer, args)
    if hasattr(module, "stop"):
        monkeypatch.setattr(module.stop, "_watch", watch or GoesOn())
    first = [Batches(batches), model, torch.nn.CrossEntropyLoss()]
    first += [optimizer, 0] if name == "train" else []
    return call(getattr(module, name), *first, **more), calls


class GoesOn:
    """Stands for the watch of a job that nobody stops before it has been asked `last` times."""

    def __init__(self, last=1000):
        self.asked, self.last, self.beats = 0, last, 0

    def is_due(self):
        self.asked += 1
        return self.asked > self.last

    def is_coming(self):
        return False


class Batches(list):
    """Batches as a loader gives them."""

    batch_size = 4

    @property
    def sampler(self):
        return range(4 * len(self))


def guesses(sizes, right) -> list:
    """Batches of these sizes for a model that returns its input; so many rows of each are right."""
    return [
        (9 * torch.eye(6)[[0] * size], torch.tensor([0] * hits + [5] * (size - hits)))
        for size, hits in zip(sizes, right)
    ]


# The modules that a purpose gets


def serves(name: str):
    """The purpose of a patch: a function in its file here."""
    return importlib.import_module(f"test_{name}").serves


@contextlib.contextmanager
def loaded(folder: Path, results):
    """Write both scripts to a folder and import them; in the end this process is as before."""
    write(folder, results)
    forget_support()
    names = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    handlers = {number: signal.getsignal(number) for number in names}
    with pytest.MonkeyPatch.context() as context:
        context.setattr("os.environ", {**os.environ, "LOCAL_RANK": "3"})  # scripts write to it
        context.syspath_prepend(folder)
        context.chdir(tempfile.mkdtemp())
        scripts = ("distributed", "dataparallel")
        try:
            yield [load(folder / f"{name}.py", name) for name in scripts]
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            forget_support()


def forget_support() -> None:
    """Let the next script import the modules of its own folder."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "support"]:
        del sys.modules[name]


@contextlib.contextmanager
def stand_ins():
    """What scripts do to their process is left out: hear signals, wait for ranks, end at once."""
    with pytest.MonkeyPatch.context() as context:
        context.setattr("os.environ", {**os.environ, "LOCAL_RANK": "3"})
        context.chdir(tempfile.mkdtemp())
        for name, value in {
            "support.stop.catch_signals": lambda: None,
            "support.job.meet": lambda args: None,
            "support.ending.at_once": sys.exit,
        }.items():
            if name.rpartition(".")[0] in sys.modules:
                context.setattr(name, value)
        torch.manual_seed(0)  # a purpose has its say about a patch, chance has not
        yield context


def missed(results, names, folder: Path) -> set[str]:
    """Those of the patches `names` whose purpose these scripts do not serve."""
    found = set()
    with loaded(folder, results) as scripts:
        for name in names:
            with stand_ins() as monkeypatch:
                try:
                    serves(name)(*scripts, monkeypatch)
                except MISSES:
                    found.add(name)
    return found
