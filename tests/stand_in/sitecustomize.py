"""A stand-in for `torch.cuda` that runs on the CPU, for tests of commands that are written for
GPUs.

    PYTHONPATH=tests/stand_in FAKE_GPUS=2 torchrun --nproc_per_node=2 build/distributed.py ...

Python imports a module of this name at every start, so the command, its worker processes and what
torchrun starts need no edit. Without FAKE_GPUS nothing happens. With FAKE_GPUS=N, torch has N
pretended devices: indices are checked and refused as torch and CUDA refuse them, and the work
itself is done on the CPU. With STAND_IN_LOG=FILE, each call of interest appends one line of JSON to
FILE, with the process id and RANK.

What it does not prove: anything about CUDA, NCCL (gloo takes its place), speed, device memory, or
that a tensor is on the right device. Tensors stay on the CPU, and `torch.cuda.is_available()` stays
False: a script that asks first goes its own way to the CPU, and only a script that takes its GPUs
for granted meets the pretended ones. The modules of `support/` are told that a parameter is where
its model was sent; torch itself has to know better.
"""

import contextlib
import functools
import json
import os
import shutil
import sys
from importlib.machinery import PathFinder
from types import SimpleNamespace


def log(event, **details):
    if path := os.environ.get("STAND_IN_LOG"):
        line = json.dumps(
            {"event": event, **details, "pid": os.getpid(), "rank": os.environ.get("RANK")}
        )
        with open(
            path, "a"
        ) as file:  # one short write in append mode: lines of several ranks do not mix
            file.write(line + "\n")


@functools.cache
def announce(devices):
    """Say once a job, when a device is first asked for, that no GPU is at work; workers inherit the
    cache.
    """
    if os.environ.get("RANK", "0") == "0":
        print(
            f"stand-in: torch.cuda is played by the CPU, {devices} devices",
            file=sys.stderr,
            flush=True,
        )


def play(torch, devices):
    """Replace what the scripts use of `torch.cuda`, and what they build on it."""
    import torch.distributed as dist
    from torch.cuda._utils import _get_device_index
    from torch.func import functional_call
    from torch.nn.parallel import DataParallel, DistributedDataParallel

    current = 0

    def device_count():
        announce(devices)
        return devices

    def existing(device):
        announce(devices)
        index = _get_device_index(device, optional=True)
        if index is None:
            index = current
        if index < 0:
            raise RuntimeError("Device index must not be negative")
        if devices == 0:
            raise RuntimeError("No CUDA GPUs are available")
        if index >= devices:
            raise RuntimeError("CUDA error: invalid device ordinal")
        return index

    def get_device_properties(device=None):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
        return SimpleNamespace(uuid=f"{existing(device)} of {visible}")

    def set_device(device):
        nonlocal current
        index = _get_device_index(device)
        log("set_device", index=index)
        if (
            index >= 0
        ):  # torch ignores a negative index without a word, which hides a rank that was never set
            current = existing(index)

    def cuda(self, device=None, *args, **kwargs):
        existing(device)
        return self

    def stays(to):
        """`.to(...)` that does not go to a pretended device, but does all else that was asked of
        it.
        """

        def wrapper(self, *args, **kwargs):
            def moves(target):
                is_place = isinstance(target, (str, torch.device))
                return (
                    is_place
                    and torch.device(target).type == "cuda"
                    and existing(target) is not None
                )

            args = [arg for arg in args if not moves(arg)]
            kwargs = {
                key: value for key, value in kwargs.items() if key != "device" or not moves(value)
            }
            return to(self, *args, **kwargs) if args or kwargs.keys() - {"non_blocking"} else self

        return wrapper

    def pretends(to):
        """`Module.to` whose parameters remember where they were sent."""

        def wrapper(self, *args, **kwargs):
            result, target = (
                to(self, *args, **kwargs),
                kwargs.get("device", args[0] if args else None),
            )
            if isinstance(target, (str, torch.device)) and torch.device(target).type == "cuda":
                for parameter in self.parameters():
                    parameter.pretended = torch.device("cuda", existing(target))
            return result

        return wrapper

    true_device = torch.Tensor.device

    def told(tensor):
        asks = sys._getframe(1).f_globals.get("__name__", "")
        pretended = getattr(tensor, "pretended", None) if asks.startswith("support.") else None
        return pretended or true_device.__get__(tensor)

    # As on a GPU, each device draws by a generator of its own; the CPU's plays it for as long as
    # that one works.
    generators = tuple(torch.Generator() for _ in range(devices))

    @contextlib.contextmanager
    def drawing_on(index):
        own, played = torch.default_generator.get_state(), generators[index]
        torch.default_generator.set_state(played.get_state())
        try:
            yield
        finally:
            played.set_state(torch.default_generator.get_state())
            torch.default_generator.set_state(own)

    torch.cuda.default_generators = generators
    torch.cuda.device_count = device_count
    torch.cuda.get_device_properties = get_device_properties
    torch.cuda.set_device = set_device
    torch.cuda.current_device = lambda: existing(None)

    class Stream(torch.cuda.Stream):  # all are one: what is asked of it is done at once
        def __new__(cls, device=None):
            existing(device)
            return SimpleNamespace(wait_stream=lambda other: None)

    torch.cuda.Stream = torch.cuda.current_stream = Stream
    torch.cuda.stream = lambda stream: contextlib.nullcontext()
    torch.empty_like = stays(torch.empty_like)
    torch.Tensor.cuda = cuda
    torch.nn.Module.cuda = cuda
    torch.Tensor.to = stays(torch.Tensor.to)
    torch.nn.Module.to = pretends(stays(torch.nn.Module.to))
    torch.Tensor.device = property(told)

    start = dist.init_process_group

    def init_process_group(backend=None, *args, device_id=None, **kwargs):
        if device_id is not None:
            existing(device_id)
        start("gloo" if backend and "nccl" in backend else backend, *args, **kwargs)
        log("init_process_group", backend=backend, world_size=dist.get_world_size())

    dist.init_process_group = init_process_group

    ddp_init = DistributedDataParallel.__init__

    def init_ddp(self, module, device_ids=None, output_device=None, *args, **kwargs):
        log(
            "DistributedDataParallel",
            device_ids=device_ids and [existing(device) for device in device_ids],
        )
        ddp_init(self, module, None, None, *args, **kwargs)

    DistributedDataParallel.__init__ = init_ddp

    dp_init = DataParallel.__init__

    def init_dp(self, module, device_ids=None, output_device=None, dim=0):
        dp_init(self, module)
        if (
            devices == 0
        ):  # torch: without a device DataParallel calls the module, whatever the list says
            return
        self.device_ids = [
            _get_device_index(x) for x in (range(devices) if device_ids is None else device_ids)
        ]
        self.output_device = _get_device_index(
            self.device_ids[0] if output_device is None else output_device
        )
        self.dim = dim
        log("DataParallel", device_ids=self.device_ids, output_device=self.output_device)
        for index in (*self.device_ids, self.output_device):
            if not 0 <= index < devices:
                raise AssertionError("Invalid device id")

    def forward(self, *inputs):
        if len(self.device_ids) < 2:
            return self.module(*inputs)
        # A short batch gives fewer pieces than devices, as in torch.
        first, *others = zip(*(tensor.chunk(len(self.device_ids), self.dim) for tensor in inputs))
        with drawing_on(self.device_ids[0]):
            outputs = [self.module(*first)]
        for index, piece in zip(self.device_ids[1:], others):
            # Replicas drop their buffers after the step: only the first device moves the running
            # statistics.
            buffers = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
            with drawing_on(index):
                outputs.append(functional_call(self.module, buffers, piece))
        return torch.cat(outputs, self.dim)

    DataParallel.__init__ = init_dp
    DataParallel.forward = forward

    save = torch.save
    copyfile = shutil.copyfile

    def spy_save(obj, f, *args, **kwargs):
        log("save", path=str(getattr(f, "name", f)))
        return save(obj, f, *args, **kwargs)

    def spy_copyfile(src, dst, **kwargs):
        log("copyfile", src=os.fspath(src), dst=os.fspath(dst))
        return copyfile(src, dst, **kwargs)

    torch.save = spy_save
    shutil.copyfile = spy_copyfile  # shutil.copy and copy2 call it by this name


class PlayAfterImport:
    """Finds torch where it is, and has `play` run right after it: processes without torch pay
    nothing.
    """

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "torch":
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is None:
            return None
        load = spec.loader.exec_module

        def load_and_play(module):
            load(module)
            play(module, int(os.environ["FAKE_GPUS"]))

        spec.loader.exec_module = load_and_play
        return spec


if "FAKE_GPUS" in os.environ:
    sys.meta_path.insert(0, PlayAfterImport)
