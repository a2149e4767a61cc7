"""--val-every: after which epochs a run validates."""


def add_options(parser):
    parser.add_argument(
        "--val-every",
        default=1,
        type=int,
        metavar="N",
        help="validate every N epochs, and after the last one; only then can there be a new best "
        "checkpoint (default: 1)",
    )


def is_due(epoch: int, args) -> bool:
    """Whether there is a validation after this epoch."""
    done, every = epoch + 1, args.val_every
    return bool(done % every == 0 or done >= args.epochs)
