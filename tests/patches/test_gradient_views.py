"""Gradients lie in the buckets that ranks exchange."""

import builds


def serves(distributed, dataparallel, monkeypatch):
    given, wrapped = [], builds.wrapped
    monkeypatch.setattr(
        builds, "wrapped", lambda model, **options: given.append(options) or wrapped(model)
    )
    builds.run_worker(distributed, monkeypatch)
    assert [options.get("gradient_as_bucket_view") for options in given] == [True]
