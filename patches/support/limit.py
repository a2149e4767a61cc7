"""--max-steps: how many steps a run has, whatever its epochs."""


def add_options(parser):
    parser.add_argument(
        "--max-steps",
        default=0,
        type=int,
        metavar="N",
        help="end after N steps of the run, those before --resume too: saved, and validated only "
        "if an epoch ends there (default: 0, no limit)",
    )


def is_reached(run, args) -> bool:
    """Whether so many steps are done, counted with the present length of an epoch."""
    most: int = args.max_steps
    done: int = run.epoch * run.steps + run.step
    return 0 < most <= done
