"""Inserted by patches that refuse what cannot work."""

import os
import signal
import socket
import sys
import time


def fail(message):
    """End this process with status 2; each host says why, in one line, by its first process that fails so.

    Each host and not the job, since only one of them may have the wrong folder, or no network; where there are
    several, the line names it. Mostly all processes of a host fail alike, so the first one speaks. Under torchrun,
    which ends all when one has ended, the others wait until it has spoken, and speak where it has not.
    """
    env = os.environ
    speaks = int(env.get('LOCAL_RANK', 0)) == 0
    if not speaks and 'TORCHELASTIC_RUN_ID' in env:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(30)
        speaks = True
    if speaks:
        world = env.get('WORLD_SIZE')
        host = '' if env.get('LOCAL_WORLD_SIZE', world) == world else '{}: '.format(socket.gethostname())
        print('{}: error: {}{}'.format(os.path.basename(sys.argv[0]), host, message), file=sys.stderr, flush=True)
    sys.exit(2)
