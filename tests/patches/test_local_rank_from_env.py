"""The rank on this host is what torchrun puts into LOCAL_RANK."""

import pytest
from rendering import built, make, once

HEADS = [
    b"",
    b'"""About."""\n',
    b"#!/usr/bin/env python\n# -*- coding: utf-8 -*-\n",
    b"# A licence.\n\n# About x.\n",
    b'"""About."""\nfrom __future__ import annotations\n',
]


def serves(distributed, dataparallel, monkeypatch):
    """It is 3 in the environment in which the scripts were imported."""
    assert distributed.parser.get_default("local_rank") == 3


def test_fallback_keeps_the_default_that_the_script_had():
    patch = make("local_rank_from_env", fallback=True)
    result = once(b"import os\np.add_argument('--local_rank', default=-7)\n", patch)
    read = b'int(os.environ.get("LOCAL_RANK", -7))'
    assert result == b"import os\np.add_argument('--local_rank', default=%s)\n" % read


@pytest.mark.parametrize(
    "value, fallback", [("true", True), ("false", False), (True, True), (False, False)]
)
def test_fallback_is_read_from_a_word_or_a_bool(value, fallback):
    assert make("local_rank_from_env", fallback=value).options == {"fallback": fallback}


@pytest.mark.parametrize("head", HEADS)
def test_missing_import_goes_where_an_import_may_stand(head):
    option = b"p = ArgumentParser()\np.add_argument('--local_rank', default=%s)\n"
    result = built(head + option % b"0", make("local_rank_from_env"), {"<module>": 1})
    assert result == head + b"import os\n" + option % b'int(os.environ["LOCAL_RANK"])'
