"""What a training step costs in `fast`, against upstream's own, on the CPU.

    python benchmarks/train.py [--arch resnet18 --batch 16] [--turns 5] [--threads 1] [--compile]
        [--profile]

Each contestant is a process that runs the `main` of its script, `distributed.py`, as one rank with
gloo; upstream's, with the guide's edits, believes that the CPU is CUDA.  In place of epochs it
trains a few generated batches whenever it is its turn, from the same weights.  So a step is all
that stands in the loop of `train`.  Steps are timed from one batch that the loop asks for to the
next; the first, which prints a line, and the last are left out.  Ratios are those of one turn, and
their median is shown: of CPU time, and of the clock.  Each row prints what was checked: the losses
against upstream's, and what the host waits for in a step that prints nothing.  --profile also says
which of torch's operators a step of each contestant is spent in.
"""

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from timing import PYTHON, ROOT, environment, ratio

sys.path.insert(0, str(ROOT / "examples"))

STEP = ("mixed_precision", "channels_last", "fused_optimizer", "gradient_views")
WAITS = ("barrier", "all_reduce", "item", "tolist")
# The images of a batch, and who takes part: a ViT needs 2.5 GB, and has no convolutions.
CASES = {
    "resnet18": (16, ("standard", *STEP, "all of step", "fast")),
    "vit_b_16": (4, ("standard", "mixed_precision", "fused_optimizer", "fast")),
}


# Building


def build(name: str, folder: Path) -> None:
    """Write the scripts of a contestant: upstream's, a series, or `standard` and some patches."""
    from patcher.build.project import Project, Request
    from patcher.core.engine import render

    project = Project(ROOT)
    source = (ROOT / "upstream/distributed.py").read_bytes()
    folder.mkdir(parents=True)
    name = {"upstream": "guide"}.get(name, name)  # as it is, it ends in its first step
    base = name if name in project.all_series() else "standard"
    patches = project.patches_of(Request(base))
    if name != base:
        wanted = STEP if name == "all of step" else (name,)
        more = project.patches_of(Request("fast"))
        patches += [patch for patch in more if patch.slug() in wanted]
    result = render("distributed.py", source, patches, project.support())
    assert not result.stale, result.outcomes
    (folder / "distributed.py").write_bytes(result.after)
    for module in result.support:
        (folder / "support").mkdir(exist_ok=True)
        text = project.support()[module]
        (folder / "support" / f"{module}.py").write_bytes(text)


# A contestant's process


class Generated:
    """Batches as a loader gives them, and the clocks each time that the loop asks for the next."""

    def __init__(self, count: int, size: int):
        import torch

        dice = torch.Generator().manual_seed(1)
        self.images = torch.randn(size, 3, 224, 224, generator=dice)
        self.labels = torch.randint(0, 1000, (size,), generator=dice)
        self.count, self.batch_size, self.sampler = count, size, range(count * size)
        self.asked: list[tuple[float, float]] = []
        self.waits: Counter = Counter()  # what a spy has counted
        self.seen: list[Counter] = []

    def __len__(self) -> int:
        return self.count

    def __iter__(self):
        for _ in range(self.count):
            self.asked.append((time.process_time(), time.perf_counter()))
            self.seen.append(self.waits.copy())
            yield self.images, self.labels

    def steps(self) -> list[tuple[float, ...]]:
        """(CPU, clock) seconds of each step but the first and the last."""
        pairs = zip(self.asked[1:], self.asked[2:])
        return [tuple(b - a for a, b in zip(*pair)) for pair in pairs]


@contextlib.contextmanager
def spying(waits: Counter):
    """Count what makes the host wait."""
    from unittest import mock

    import torch
    import torch.distributed as dist
    from torch.utils._python_dispatch import TorchDispatchMode

    class Spy(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function.overloadpacket.__name__ == "_local_scalar_dense":
                waits["item"] += 1
            return function(*args, **(kwargs or {}))

    def counting(place, name):
        function = getattr(place, name)

        def call(*args, **named):
            waits[name] += 1
            return function(*args, **named)

        return mock.patch.object(place, name, call)

    with contextlib.ExitStack() as stack:
        for place, name in ((dist, "barrier"), (dist, "all_reduce"), (torch.Tensor, "tolist")):
            stack.enter_context(counting(place, name))
        stack.enter_context(Spy())
        yield


def profiled(train) -> "list[tuple[str, float]]":
    """The operators that most of the time of `train()` is spent in, with their shares of it."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as seen:
        train()
    events = seen.key_averages()
    whole = sum(event.self_cpu_time_total for event in events)
    shares = sorted((event.self_cpu_time_total / whole, event.key) for event in events)
    return [(name, share) for share, name in shares[:-7:-1]]


def pretend_cuda() -> None:
    """Let upstream's script, which knows CUDA and NCCL alone, run on the CPU."""
    import torch
    import torch.distributed as dist

    parallel, begin = torch.nn.parallel.DistributedDataParallel, dist.init_process_group
    torch.cuda.device_count = lambda: 1
    torch.cuda.set_device = lambda device: None
    torch.nn.Module.cuda = lambda self, device=None: self
    torch.Tensor.cuda = lambda self, *args, **named: self
    torch.nn.parallel.DistributedDataParallel = lambda model, device_ids: parallel(model)
    dist.init_process_group = lambda backend: begin("gloo")


def work(script: Path, arch: str, size: int, argv: list[str]) -> None:
    """Run a script's `main`; in place of an epoch, train what the lines of stdin say."""
    import importlib.util

    import torch
    from torchvision import models

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    sys.path.insert(0, str(script.parent))
    sys.argv = [str(script), *argv]
    spec = importlib.util.spec_from_file_location("distributed", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not (script.parent / "support").is_dir():
        pretend_cuda()
    train, say = module.train, os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.manual_seed(0)
    weights = models.get_model(arch).state_dict()

    def turns(loader, model, criterion, optimizer, *rest):
        losses = []
        criterion.register_forward_hook(lambda *given: losses.append(given[-1].detach()))
        while line := sys.stdin.readline():
            model.module.load_state_dict(weights)
            optimizer.state.clear()
            losses.clear()
            count, spied, profiles = json.loads(line)
            batches = Generated(count + 2, size)

            def steps(batches=batches):
                train(batches, model, criterion, optimizer, *rest)

            if profiles:
                print(json.dumps(profiled(steps)), file=say, flush=True)
                continue
            with spying(batches.waits) if spied else contextlib.nullcontext():
                steps()
            after, before = batches.seen[-1], batches.seen[1]
            waits = {name: (after[name] - before[name]) / count for name in after}
            numbers = [float(loss) for loss in losses]
            print(json.dumps([batches.steps(), numbers, waits]), file=say, flush=True)
        os._exit(0)

    module.train = turns
    module.main()


# Taking turns


class Contestant:
    """A process that trains when it is told to."""

    def __init__(self, name: str, folder: Path, data: Path, arch: str, size: int, threads: int):
        self.name, self.cpu, self.clock = name, [], []
        self.losses: list[float] = []
        self.waits: dict[str, float] = {}
        series, *options = name.split(" --")
        out = folder / name.replace(" ", "_")
        build(series, out / "build")
        argv = ["--data", data, "--arch", arch, "--batch-size", size, "--lr", "0.001"]
        argv += ["--epochs", 1, "--workers", 0, "--print-freq", 10**6, "--local_rank", 0]
        if name != "upstream":
            argv += ["--device", "cpu", "--num-classes", 1000, "--timeout", 10**6]
            argv += ["--output-dir", out / "run", *(f"--{option}" for option in options)]
        alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
        alone |= {"MASTER_PORT": "0", "OMP_NUM_THREADS": str(threads)}
        command = [PYTHON, __file__, "--worker", out / "build/distributed.py", arch, size, *argv]
        self.log = open(out / "log", "w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [*map(str, command)],
            env=environment() | alone,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )

    def train(self, steps: int, spied: bool = False, profiles: bool = False):
        """Train so many steps and two more."""
        print(json.dumps([steps, spied, profiles]), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            self.log.seek(0)
            raise SystemExit(f"{self.name} has ended\n{self.log.read()[-3000:]}")
        return json.loads(line)

    def time(self, steps: int) -> None:
        seconds, self.losses, _ = self.train(steps)
        self.cpu.append(statistics.median(cpu for cpu, _ in seconds))
        self.clock.append(statistics.median(clock for _, clock in seconds))

    def end(self) -> None:
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self.log.close()


def checked(one: Contestant, upstream: Contestant) -> str:
    """What a row has to say of its numbers."""
    assert all(map(math.isfinite, one.losses)) and len(one.losses) == len(upstream.losses)
    apart = max(abs(a - b) / b for a, b in zip(one.losses, upstream.losses))
    assert apart < 0.05, (one.name, one.losses, upstream.losses)
    waits = ", ".join(f"{one.waits.get(name, 0):g} {name}" for name in WAITS)
    return f"losses of {len(one.losses)} steps {100 * apart:.4f} % apart; waits: {waits}"


def compare(arch: str, size: int, names, turns: int, steps: int, threads: int, profiles) -> None:
    """Print a row for each contestant."""
    import digits

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        digits.write(folder / "data", limit=1)
        made = [Contestant(name, folder, folder / "data", arch, size, threads) for name in names]
        for one in made:
            began = time.perf_counter()
            _, _, one.waits = one.train(2, spied="compile" not in one.name)
            print(
                f"{arch}: {one.name}: first steps {time.perf_counter() - began:.0f} s", flush=True
            )
            one.train(1)
        for turn in range(turns):
            for one in made[:: -1 if turn % 2 else 1]:
                one.time(steps)
        upstream = made[0]
        print(f"\n{arch}, batch {size}, {threads} thread(s), {turns} turns of {steps} steps")
        for one in made:
            faster = [ratio(upstream.cpu, one.cpu), ratio(upstream.clock, one.clock)]
            seconds = [statistics.median(one.cpu), statistics.median(one.clock)]
            print(
                f"  {one.name:18} CPU {seconds[0]:6.3f} s {faster[0]:5.2f} x, "
                f"clock {seconds[1]:6.3f} s {faster[1]:5.2f} x | {checked(one, upstream)}"
            )
            if profiles:
                shares = one.train(steps, profiles=True)
                print("  ", ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares))
        for one in made:
            one.end()


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        script, arch, size, *argv = sys.argv[2:]
        work(Path(script), arch, int(size), argv)
        return
    parser = argparse.ArgumentParser(description="Time a training step on the CPU.")
    add = parser.add_argument
    add("--arch", choices=CASES, help="the model (default: each of them)")
    add("--batch", type=int, help="images of a step (default: 16, vit_b_16 4)")
    add("--turns", type=int, default=5, help="turns (default: 5)")
    add("--steps", type=int, default=3, help="steps of a turn (default: 3)")
    add("--threads", type=int, default=1, help="threads of torch (default: 1)")
    add("--contestants", nargs="+", help="besides upstream (default: see CASES)")
    add("--compile", action="store_true", help="also fast --compile, which takes minutes")
    add("--profile", action="store_true", help="also say where the time goes, by operator")
    args = parser.parse_args()
    for arch in [args.arch] if args.arch else CASES:
        size, names = CASES[arch]
        names = ["upstream", *(args.contestants or names)]
        names += ["fast --compile"] if args.compile else []
        compare(arch, args.batch or size, names, args.turns, args.steps, args.threads, args.profile)


if __name__ == "__main__":
    main()
