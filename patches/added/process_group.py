"""Inserted by `ended_process_group`."""

import os
import signal
import sys
import threading
import time

import torch.distributed as dist


def end_with(parent, patience=10):
    """End this process once `parent`, the launcher, is gone; by force where it does not end by itself."""
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(patience)  # a rank that waits for another in a collective does not see the signal
    os._exit(128 + signal.SIGTERM)


def run_to_the_end(worker, *args):
    """Run `worker`, and leave the process group whichever way it ends: return, exception or SIGTERM."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if 'TORCHELASTIC_RUN_ID' in os.environ:
        threading.Thread(target=end_with, args=(os.getppid(), ), daemon=True).start()
    try:
        worker(*args)
    finally:
        if dist.is_initialized():
            # Older torch waits, with Python's lock held, for threads that may want it to let go of their last tensor.
            time.sleep(0.1)
            dist.destroy_process_group()
