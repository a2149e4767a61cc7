"""Inserted by `configurable_gpus`, which also reads its own option with it: keep it free of torch."""


def gpu_ids(spec):
    """The GPU ids in a string such as `0,2` or `0-3,7`, in the order given.

    Raises ValueError where it is not such a list or an id is in it twice.
    """
    ids = []
    for part in spec.split(','):
        first, dash, last = part.strip().partition('-')
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last) < 1024):
            raise ValueError("expected GPU ids such as 0,2 or 0-3,7, found {!r}".format(spec))
        ids.extend(range(int(first), int(last) + 1))
    twice = sorted({i for i in ids if ids.count(i) > 1})
    if twice:
        raise ValueError("GPU {} is named twice in {!r}".format(twice[0], spec))
    return ids
