"""--profile: what a few steps spend their time on, as torch's profiler sees it on rank 0."""

import os

import torch
from torch import profiler

from . import files, ranks
from .output_folder import TRACE
from .terminal import print_once

BEFORE = 5  # steps that are not recorded, the last of them to warm the profiler up
ROWS = 10

_profile: "profiler.profile | None" = None


def add_options(parser):
    parser.add_argument(
        "--profile",
        default=0,
        type=int,
        metavar="N",
        help="record N steps of rank 0, after the first 5, with torch's profiler: the longest "
        "operators are printed, and profile.json.gz in the output folder opens in a browser with "
        "https://ui.perfetto.dev (default: 0)",
    )


def begin(args):
    """With --profile: record the steps to come, on rank 0. The first call counts."""
    global _profile
    if args.profile and _profile is None and ranks.is_rank_zero():
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it reports at length that there is no GPU
        steps = profiler.schedule(wait=BEFORE - 1, warmup=1, active=args.profile, repeat=1)
        _profile = profiler.profile(schedule=steps, on_trace_ready=write)
        _profile.start()


def next_step():
    """Tell the profiler that a step is over."""
    if _profile is not None:
        _profile.step()


def write(recorded: profiler.profile):
    """Write what was recorded, and print the operators that took the most time themselves."""
    with files.atomic_write(TRACE) as temporary:
        recorded.export_chrome_trace(f"{temporary}.json.gz")
        os.rename(f"{temporary}.json.gz", temporary)
    key = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    print_once(recorded.key_averages().table(key, row_limit=ROWS))
    print_once(f"profile of these steps: {os.path.abspath(TRACE)}, see https://ui.perfetto.dev")
