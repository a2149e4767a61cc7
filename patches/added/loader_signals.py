"""Inserted by `loader_signals`."""

import signal


def outlive_signals(worker):
    """Let a loading process go on at signals that ask for the end of the job: it is needed until the step is done.

    Launchers send them to each process that they find. After half a minute it is not needed any more.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: signal.alarm(30))
    for name in ('SIGINT', 'SIGUSR1'):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
