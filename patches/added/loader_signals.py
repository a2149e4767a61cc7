"""Inserted by `loader_signals`."""

import os
import signal
import threading


def outlive_signals(worker):
    """Let a loading process go on at signals that ask for the end of the job: it is needed until the step is done.

    Launchers send them to each process that they find. It ends when its own process wants it to, and with that.
    """
    for name in ('SIGINT', 'SIGUSR1'):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    if hasattr(signal, 'sigwaitinfo'):  # else nothing tells by whom a signal was sent
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=end_for, args=(os.getppid(), ), daemon=True).start()


def end_for(parent):
    """End this process when `parent` sends SIGTERM, and not when others do."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
