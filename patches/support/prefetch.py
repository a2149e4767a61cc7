"""Batches that are on the device when the loop gets them."""

import torch


def add_options(parser):
    parser.add_argument(
        "--prefetch",
        default=2,
        type=int,
        metavar="N",
        help="batches that each loading process has ready (default: 2)",
    )


def depth(args) -> "int | None":
    """The `prefetch_factor` of a loader: --prefetch; None without workers, where torch takes none.

    Call it after `loading.check`, which settles `args.workers`.
    """
    prefetch: int = args.prefetch
    return prefetch if args.workers > 0 else None


def ahead(loader, device: torch.device):
    """The batches of `loader`, each a list of tensors that are on `device`.

    On CUDA the next batch is read before this one is handed out, so it is copied while this one is
    computed, on a stream of its own; the host waits for no copy from pinned memory. An error of the
    loader still comes after the batches before it. Elsewhere nothing is read ahead: a batch is read
    when it is asked for.
    """
    if device.type != "cuda":
        for batch in loader:
            yield [part.to(device, non_blocking=True) for part in batch]
        return
    side = torch.cuda.Stream(device)
    coming = _copies(loader, device, side)
    ready = next(coming, None)
    try:
        while ready is not None:
            if isinstance(ready, Exception):
                raise ready
            torch.cuda.current_stream(device).wait_stream(side)
            following = next(coming, None)
            yield ready
            ready = following
    finally:
        ready = None  # an error keeps this frame, which would keep the error, and its loader
        # A loop that ends early frees memory into which a copy may still write.
        torch.cuda.current_stream(device).wait_stream(side)


def _copies(loader, device: torch.device, side):
    """Each batch on the device, once the stream `side` gets to it; an error of the loader is last.

    The memory is the current stream's, and `side` writes to it after all work that is queued there
    by now. So what the loop lets go of is used again at once: with memory of `side`, a host that is
    several steps ahead of its device would take new memory in each of them.
    """
    try:
        for batch in loader:
            parts = [torch.empty_like(part, device=device) for part in batch]
            side.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(side):
                for part, source in zip(parts, batch):
                    part.copy_(source, non_blocking=True)
            yield parts
            del parts  # the loop alone holds it
    except Exception as error:
        yield error
