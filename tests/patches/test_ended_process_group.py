"""The process group is left after the work; after an error the process ends at once."""

import pytest
from builds import data_set


def serves(distributed, dataparallel, monkeypatch):
    ended = []
    monkeypatch.setattr("sys.argv", ["distributed.py", "--data", data_set()])
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.destroy_process_group", lambda: ended.append(True))
    monkeypatch.setattr(distributed, "main_worker", lambda *args: None)
    distributed.main()
    assert ended == [True]
    monkeypatch.setattr(distributed, "main_worker", lambda *args: 1 / 0)
    with pytest.raises(SystemExit) as status:  # with NCCL, to leave the group waits for all ranks
        distributed.main()
    assert (status.value.code, ended) == (1, [True])
