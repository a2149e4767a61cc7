"""The machine: what training needs of it, and whether it is there."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from patcher.core.problem import UsageError
from patcher.verify.findings import Check, Standing

GROUP = "machine"
HERE = Path(__file__).resolve().parent
GIB, MIB = 2**30, 2**20
IMAGE = 3 * 224 * 224 * 4  # bytes of one image as the model takes it


class Setup(NamedTuple):
    """What is going to run."""

    kind: str  # of device
    ranks: int
    workers: int  # loading processes of each rank
    batch_size: int  # images a step, over all ranks


def probe(arch: str) -> dict[str, Any]:
    """What torch says, see `probe.py`.  Raises UsageError if it cannot be asked."""
    command = [sys.executable, str(HERE / "probe.py"), arch]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise UsageError(
            f"torch cannot be used here: {why}",
            hint='Install it with `pip install ".[train]"`, or run another Python.',
        )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if not found["known"]:
        close = f"; close ones: {', '.join(found['close'])}" if found["close"] else ""
        raise UsageError(f"--arch {arch}: torchvision has no such model{close}")
    return found


def cores() -> int:
    """Those that this process may use, as the built scripts count them."""
    affinity = hasattr(os, "sched_getaffinity")
    count = len(os.sched_getaffinity(0)) if affinity else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        count = min(count, int(quota) // int(period))
    return max(1, count)


def _ranks(plan: Setup) -> str:
    return f"{plan.ranks} rank{'s' * (plan.ranks > 1)}"


def findings(found: dict[str, Any], plan: Setup, folder: Path) -> Iterator[Check]:
    yield _versions(found)
    yield _devices(found, plan)
    yield _memory(plan)
    yield _shared_memory(plan)
    yield _open_files(plan)
    yield _cores(plan)
    yield _host_name()
    yield _port()
    yield _disk(folder)


def _versions(found: dict[str, Any]) -> Check:
    python = ".".join(map(str, sys.version_info[:3]))
    versions = {"python": python, "torch": found["torch"], "torchvision": found["torchvision"]}
    message = ", ".join(f"{name} {version}" for name, version in versions.items())
    return Check(GROUP, "versions", Standing.FINE, message, facts=versions)


def _devices(found: dict[str, Any], plan: Setup) -> Check:
    devices, facts = found["devices"], {"kind": plan.kind, "devices": found["devices"]}
    if not devices:
        message = f"none: all runs on the CPU, with {_ranks(plan)} here"
        hint = "With a GPU here, `nvidia-smi` should list it; see which torch goes with the driver."
        return Check(GROUP, "devices", Standing.WARNING, message, hint, facts)
    names = sorted({device["name"] for device in devices})
    message = f"{len(devices)} x {', '.join(names)}"
    shares = [device["free"] / device["total"] for device in devices if "free" in device]
    if shares:
        least = min(device["free"] for device in devices) / GIB
        message += f", at least {least:.1f} GiB free on each"
    if shares and min(shares) < 0.5:
        hint = "Another process uses a device: `nvidia-smi` shows which."
        return Check(GROUP, "devices", Standing.WARNING, message, hint, facts)
    return Check(GROUP, "devices", Standing.FINE, message, facts=facts)


def _memory(plan: Setup) -> Check:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = 1024 * next(int(line.split()[1]) for line in lines if line[:9] == "MemAvaila")
    except (OSError, StopIteration, ValueError):
        return Check(GROUP, "memory", Standing.SKIPPED, "this system does not say what is free")
    with contextlib.suppress(OSError, ValueError):  # "max": no limit of a container
        limit, used = (
            int(Path(f"/sys/fs/cgroup/memory.{name}").read_text()) for name in ("max", "current")
        )
        free = min(free, limit - used)
    message, facts = f"{free / GIB:.1f} GiB free", {"free": free}
    if free < 2 * GIB * plan.ranks:
        message += f"; {plan.ranks} ranks with their loading processes need about 2 GiB each"
        return Check(GROUP, "memory", Standing.WARNING, message, "End other programs.", facts)
    return Check(GROUP, "memory", Standing.FINE, message, facts=facts)


def _shared_memory(plan: Setup, folder: str = "/dev/shm") -> Check:
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return Check(GROUP, folder, Standing.SKIPPED, "not on this system")
    each = 2 * plan.workers * IMAGE  # two batches ready in each worker, a share of it in each rank
    needed, most = each * plan.batch_size, free // each
    message = (
        f"{free / MIB:.0f} MiB free; batches of {plan.batch_size} need {needed / MIB:.0f}, "
        f"and up to {most} images a step fit"
    )
    facts = {"free": free, "needed": needed, "most": most}
    if free < needed:
        hint = "Start the container with --ipc=host or --shm-size=16g, or use fewer workers (-j)."
        return Check(GROUP, folder, Standing.FAILED, message, hint, facts)
    return Check(GROUP, folder, Standing.FINE, message, facts=facts)


def _open_files(plan: Setup) -> Check:
    import resource  # not on Windows, where torchrun does not run these scripts either

    needed = 32 + 12 * plan.workers
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = hard == resource.RLIM_INFINITY
    allowed = "any number" if unlimited else str(hard)
    message = f"{allowed} allowed, {needed} needed by each rank"
    facts = {"allowed": None if unlimited else hard, "needed": needed}
    if not unlimited and hard < needed:
        hint = f"Allow more with `ulimit -n {needed}`, or use fewer workers (-j)."
        return Check(GROUP, "open files", Standing.FAILED, message, hint, facts)
    return Check(GROUP, "open files", Standing.FINE, message, facts=facts)


def _cores(plan: Setup) -> Check:
    count = cores()
    message = f"{count}, for {_ranks(plan)} with {plan.workers} loading processes each"
    facts = {"cores": count, "ranks": plan.ranks, "workers": plan.workers}
    if count < plan.ranks * (1 + plan.workers) and plan.kind != "cpu":
        hint = "Give the job more cores: devices will wait for images."
        return Check(GROUP, "cores", Standing.WARNING, message, hint, facts)
    return Check(GROUP, "cores", Standing.FINE, message, facts=facts)


def _host_name() -> Check:
    name = socket.gethostname()
    try:
        address = socket.getaddrinfo(name, None)[0][4][0]
    except OSError:
        message = f"{name} does not resolve, so torchrun may hang"
        hint = "Add --local-addr=127.0.0.1 to torchrun, or the name to /etc/hosts."
        return Check(GROUP, "host name", Standing.WARNING, message, hint)
    return Check(GROUP, "host name", Standing.FINE, f"{name} is {address}")


def _port() -> Check:
    """A free port of this machine, and the one that torchrun takes if nobody names another."""
    try:
        with socket.create_server(("127.0.0.1", 0)):
            pass
    except OSError as error:
        message = f"no free port on 127.0.0.1: {error.strerror}"
        hint = "Let this process listen on 127.0.0.1: the ranks meet there."
        return Check(GROUP, "port", Standing.FAILED, message, hint)
    try:
        with socket.create_server(("127.0.0.1", 29500)):
            return Check(GROUP, "port", Standing.FINE, "29500 and others are free")
    except OSError:
        message = "29500, which torchrun takes by default, is in use"
        hint = "Give torchrun another --master-port."
        return Check(GROUP, "port", Standing.WARNING, message, hint)


def _disk(folder: Path) -> Check:
    free = shutil.disk_usage(folder).free
    message, facts = f"{free / GIB:.1f} GiB free in {folder}", {"free": free}
    if free < 2 * GIB:
        hint = "Checkpoints need room: make some, or name another --folder."
        return Check(GROUP, "disk", Standing.WARNING, message, hint, facts)
    return Check(GROUP, "disk", Standing.FINE, message, facts=facts)
