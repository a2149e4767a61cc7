"""The order of things: machine, project, data, then trainings and what they have left.

`verify` yields a finding as soon as there is one. Only processes that it starts import torch.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

from patcher.build import build, store
from patcher.build.manifest import MANIFEST
from patcher.build.project import Project, Request
from patcher.core.problem import UsageError
from patcher.verify import artefacts, hosts, machine, samples, training
from patcher.verify.findings import Check, Standing, judged

Tell = Callable[[str], None]
RATE = ("--lr", "0.01")


class Options(NamedTuple):
    """What the command line says; None is for what fits this machine."""

    quick: bool = False
    data: Path | None = None
    arch: str | None = None
    batch_size: int | None = None
    cpu: bool = False  # leave devices alone
    folder: Path | None = None  # where all is written; None: somewhere, and removed at the end
    out: Path = Path("build")


class Job(NamedTuple):
    """What all trainings share."""

    plan: machine.Setup  # of this host
    team: hosts.Ranks | None  # of a launcher
    world: int  # ranks on all hosts
    arch: str
    steps: int  # of an epoch
    build: Path
    data: Path
    runs: Path
    env: Mapping[str, str]
    same_numbers: tuple[str, ...]  # options with which validation is upstream's, bit for bit
    tell: Tell


def verify(project: Project, request: Request, options: Options, tell: Tell) -> Iterator[Check]:
    """Everything in turn.  Raises UsageError, before any training, for what cannot be run.

    Under a launcher this is for rank 0; the others `hosts.follow` it.
    """
    team = hosts.ranks(options.folder)
    with _folder(options.folder) as folder, hosts.leading(team) if team else nullcontext():
        yield from _verify(project, request, options, team, folder, tell)


def _verify(
    project: Project,
    request: Request,
    options: Options,
    team: hosts.Ranks | None,
    folder: Path,
    tell: Tell,
) -> Iterator[Check]:
    arch = options.arch or ("shufflenet_v2_x0_5" if options.quick else "resnet18")
    tell("asking torch")
    found = machine.probe(arch)
    if options.cpu:
        found |= {"kind": "cpu", "devices": []}
    ranks = team.local_world if team else len(found["devices"]) or 2
    workers = max(1, min(16, machine.cores() // ranks))
    batch_size = 8 * ranks if options.batch_size is None else options.batch_size
    if batch_size < ranks:
        raise UsageError(f"--batch-size {batch_size}: expected {ranks} or more, one for each rank")
    if batch_size % ranks:
        raise UsageError(f"--batch-size {batch_size}: does not divide by the {ranks} ranks here")
    plan = machine.Setup(found["kind"], ranks, workers, batch_size)
    yield from machine.findings(found, plan, folder)
    if team:
        tell("waiting for all ranks")
        finding = _hosts(team)
        yield finding
        if finding.state is Standing.FAILED:
            return
    tell("building")
    files = yield from _intact(project, request, options.out)
    if not files:
        return
    store.write(folder / "build", files, {})
    steps, world = 2 if options.quick else 10, team.world if team else ranks
    images_a_step = batch_size // ranks * world
    images = {"train": steps * images_a_step, "val": images_a_step + 5}
    data = folder / "data"
    finding, steps = _images(data, options.data, images_a_step, images)
    yield finding
    env = training.environment(ranks, machine.cores())
    same = _same_numbers(files)
    runs = folder / "runs"
    job = Job(plan, team, world, arch, steps, folder / "build", data, runs, env, same, tell)
    yield from _trainings(job, request.series)


def _hosts(team: hosts.Ranks) -> Check:
    wrong, found = team.hosts()
    message = ", ".join(f"{host} with {_some(ranks)}" for host, ranks in found.items())
    hint = "Start verify on every host, with a --folder that all of them share."
    return judged("machine", "hosts", wrong, message, hint)


def _some(ranks: list[int]) -> str:
    return f"ranks {ranks[0]} to {ranks[-1]}" if len(ranks) > 1 else f"rank {ranks[0]}"


@contextlib.contextmanager
def _folder(wanted: Path | None) -> Iterator[Path]:
    if wanted is None:
        with tempfile.TemporaryDirectory(prefix="verify-", ignore_cleanup_errors=True) as name:
            yield Path(name)
        return
    try:
        wanted.mkdir(parents=True, exist_ok=True)
        used = any(wanted.iterdir())
    except OSError as error:
        raise UsageError(f"--folder {wanted}: {error.strerror}") from None
    if used:
        raise UsageError(f"--folder {wanted}: not empty; name a new folder")
    yield wanted.resolve()


def _intact(
    project: Project, request: Request, out: Path
) -> Generator[Check, None, Mapping[str, bytes]]:
    """Upstream, the series and the build that is there; the files to run, if they can be made."""
    planned = build.plan(project, request)
    wrong = "; ".join(str(problem) for problem in planned.problems if problem.code)
    count = f"{len(planned.patches)} patches of series {request.series} fit"
    hint = "Run `python -m patcher check`: it says more."
    yield judged("project", "upstream and patches", wrong, count, hint)
    if not wrong:
        if not (out / MANIFEST).exists():
            skipped = f"{out}/ is not there; what `apply` would write is tested instead"
            yield Check("project", "build", Standing.SKIPPED, skipped)
        else:
            edits = "; ".join(str(problem) for problem in build.compare(project, planned, out))
            message = f"{out}/ is what `apply` writes"
            yield judged("project", "build", edits, message, hint)
    return planned.files


def _images(
    folder: Path, data: Path | None, batch_size: int, counts: dict[str, int]
) -> tuple[Check, int]:
    """Have images in the folder, and say which; and the steps that they are enough for."""
    if data is None:
        samples.draw(folder, **counts)
        message = f"drawn digits: {counts['train']} images to train on, {counts['val']} to validate"
        hint = "With --data DIR some images of that data set are used."
        finding = Check("project", "images", Standing.FINE, message, hint, counts)
    else:
        counts = samples.choose(folder, data, **counts)
        message = f"{counts['train']} images of {data / 'train'}, {counts['val']} of val"
        finding = Check("project", "images", Standing.FINE, message, facts=counts)
    return finding, -(-counts["train"] // batch_size)


def _same_numbers(files: Mapping[str, bytes]) -> tuple[str, ...]:
    """Options of faster series that would make validation differ from upstream's by a rounding."""
    if not any(name.startswith("support/") for name in files):
        raise UsageError("series guide has no --resume to test; name standard, fast or vit")
    text = b"".join(files.values())
    plain = {
        "--exact-transforms": (),
        "--amp": ("off",),
        "--image-size": ("224",),
        "--interpolation": ("bilinear",),
    }
    known = [(name, more) for name, more in plain.items() if f'"{name}"'.encode() in text]
    return tuple(word for name, more in known for word in (name, *more))


def _trainings(job: Job, series: str) -> Iterator[Check]:
    first = _distributed(job, 1)
    yield _ended("DistributedDataParallel", first)
    if first.status == 0:
        out = job.runs / "distributed/out"
        yield judged(
            "distributed", "lines", artefacts.lines(first, [0], job.steps), "each step once"
        )
        yield _speed(first, job, series)
        second = _distributed(job, 2)
        yield _resumed(second, job)
        if second.status == 0:
            yield from _left_by("distributed", job, out, second, 2)
    if job.team:
        why = "one process on one host: `verify` without a launcher tries it"
        yield Check("dataparallel", "DataParallel", Standing.SKIPPED, why)
        return
    single = _dataparallel(job)
    yield _ended("DataParallel", single)
    if single.status == 0:
        wrong = artefacts.lines(single, [0], job.steps)
        yield judged("dataparallel", "lines", wrong, "each step once")
        out = job.runs / "dataparallel/out"
        yield from _left_by("dataparallel", job, out, single, 1)
        wrong = artefacts.table(out / "dataparallel.csv", 1)
        yield judged("dataparallel", "csv", wrong, "a row for the epoch")


def _common(job: Job, out: Path) -> list[str]:
    plan = job.plan
    settings = {"--data": job.data, "--arch": job.arch, "-b": plan.batch_size, "-j": plan.workers}
    words = [str(word) for pair in settings.items() for word in pair]
    return [*words, *RATE, "-p", "1", "--device", plan.kind, "--output-dir", str(out)]


def _distributed(job: Job, epochs: int) -> training.Training:
    """Train up to so many epochs, and resume where there is something to resume."""
    name = f"distributed.py, {'resumed' if epochs > 1 else f'{job.world} ranks'}"
    folder = job.runs / "distributed"
    command = [str(job.build / "distributed.py"), *_common(job, folder / "out")]
    command += [*job.same_numbers, "--resume", "auto", "--epochs", str(epochs)]
    if job.team:
        return job.team.lead(epochs, name, command, job.tell)
    launcher = [*training.TORCHRUN, f"--nproc_per_node={job.plan.ranks}"]
    return training.start(name, [*launcher, *command], folder, job.env, job.tell)


def _dataparallel(job: Job) -> training.Training:
    folder, env = job.runs / "dataparallel", training.environment(1, machine.cores())
    command = [str(job.build / "dataparallel.py"), *_common(job, folder / "out")]
    command += [*job.same_numbers, "--epochs", "1"]
    return training.start("dataparallel.py", command, folder, env, job.tell)


def _ended(name: str, run: training.Training) -> Check:
    group = run.name.partition(".")[0]
    failed = f"ended with status {run.status}: {run.last_words}" if run.status else ""
    hint = "Run `verify --folder DIR`: all that it printed is then in DIR/runs/*/log."
    message = f"{run.name}: trained for {run.seconds:.0f} s"
    return judged(group, name, failed, message, hint)


def _resumed(run: training.Training, job: Job) -> Check:
    if run.status:
        return _ended("resume", run)
    wrong = artefacts.lines(run, [1], job.steps)
    return judged(
        "distributed", "resume", wrong, "went on with the second epoch, and repeated none"
    )


def _left_by(
    group: str, job: Job, out: Path, run: training.Training, epochs: int
) -> Iterator[Check]:
    """Findings about the output folder of a run that is over."""
    job.tell("computing the accuracy anew")
    said = run.results[-1] if run.results else (-1.0, -1.0)
    others = ["dataparallel.csv"] if group == "dataparallel" else []
    others += ["model_best.pth.tar"] if said[0] > 0 else []  # 0 % is no new best
    yield judged(group, "files", artefacts.files(out, others), "nothing missing or half-written")
    state = artefacts.read(out / "checkpoint.pth.tar", job.data)
    ranks = job.world if group == "distributed" else 1
    wrong = artefacts.checkpoint(state, epochs, ranks)
    processes = f"{ranks} process{'es' * (ranks > 1)}"
    message = f"loads, after {epochs} of {epochs} epochs, from a run of {processes}"
    yield judged(group, "checkpoint", wrong, message)
    images = sum(1 for path in (job.data / "val").rglob("*") if path.is_file())
    slack = 0.0 if job.plan.kind == "cpu" else 100 / images  # kernels of a device round otherwise
    message = f"Acc@1 {said[0]:.3f} %, Acc@5 {said[1]:.3f} %, as computed anew one by one"
    yield judged(group, "accuracy", artefacts.accuracy(state, said, slack), message)
    if (out / "metrics.jsonl").exists():
        wrong = artefacts.metrics(
            out / "metrics.jsonl",
            epochs,
            job.steps,
            state,
            1e-4 if job.plan.kind == "cpu" else 0.05,
        )
        yield judged(
            group, "metrics", wrong, "each step and each validation once; the loss as computed anew"
        )


def _speed(run: training.Training, job: Job, series: str) -> Check:
    """Images a second, and the share of time that the devices waited; without the first step."""
    steps = run.steps[1:]
    seconds, wait = sum(step.time for step in steps), sum(step.wait for step in steps)
    if not seconds:
        return Check("distributed", "speed", Standing.SKIPPED, "too few steps to measure")
    images_a_step = job.plan.batch_size // job.plan.ranks * job.world
    rate, share = images_a_step * len(steps) / seconds, wait / seconds
    facts = {"images_per_second": rate, "data_wait": share, "steps": len(steps)}
    plural = "s" * (len(steps) > 1)
    message = f"{rate:.1f} images/s over {len(steps)} step{plural}, "
    message += f"{share:.0%} of the time waiting for images"
    if len(steps) < 5:
        message += "; too few to tell much: leave out --quick"
        return Check("distributed", "speed", Standing.FINE, message, facts=facts)
    if share < 0.2:
        return Check("distributed", "speed", Standing.FINE, message, _why_not(job), facts)
    faster = "build with --series fast, or " if series == "standard" else ""
    hint = f"Loading is what takes the time: {faster}give the job more cores, or smaller images."
    return Check("distributed", "speed", Standing.WARNING, message, hint, facts)


def _why_not(job: Job) -> str:
    if job.plan.kind == "cpu":
        return "Computing is what takes the time, on the CPU; this says nothing about a GPU."
    return "The loading processes keep up with the devices."
