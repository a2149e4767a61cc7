"""Inserted by `saved_steps`."""

import argparse
import functools
import os
import signal
import sys

import torch
import torch.distributed as dist

from patches.added.checkpoint import whole_state
from patches.added.job_seed import derived_seed, job_seed
from patches.added.rank_zero import is_rank_zero, print_once
from patches.added.samples_left import first_step
from patches.added.stop_unless_finite import stop_unless_finite
from patches.added.watch import Watch

parser = argparse.ArgumentParser()
parser.add_argument('--save-every',
                    default=0,
                    type=int,
                    metavar='N',
                    help='save every N steps too (default: 0, at the end of each epoch; and at SIGTERM, SIGINT and '
                    'SIGUSR1, which end the run behind the present step with status 75)')


save_checkpoint = None  # the script has it

def leave(save, args):
    """Save, and end this process when the checkpoint is written: all ranks come here, and end together."""
    save()
    if dist.is_available() and dist.is_initialized():
        dist.barrier()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher sends it once the first rank has ended
    print_once('stopped by a signal, and saved: --resume auto goes on from here')
    sys.exit(75)  # EX_TEMPFAIL: to be run again


def save_step(model, optimizer, progress, epoch, step, args):
    """Save in the middle of an epoch, behind `step` of its steps; all ranks come here."""
    losses = [meter.val for meter in progress.meters if meter.name == 'Loss']
    stop_unless_finite(losses, step - 1, model, optimizer, epoch)
    world, meters = 1, [[(float(meter.sum), meter.count) for meter in progress.meters]]
    if dist.is_available() and dist.is_initialized():
        world = dist.get_world_size()
        meters = meters * world
        dist.all_gather_object(meters, meters[0])
    if is_rank_zero():
        state = {'epoch': epoch, 'arch': args.arch, 'state_dict': {}, 'best_acc1': getattr(args, 'best_acc1', 0.)}
        totals = [[sum(column) for column in zip(*ranks)] for ranks in zip(*meters)]
        save_checkpoint(
            whole_state(state, model, optimizer, args, step=step, images=step * args.batch_size * world, meters=totals),
            False)


def seed_step(args, epoch, step):
    """Let all that this step draws, in a model with dropout, follow from the seed of the job, the step and the rank.

    `torch.manual_seed` would go through all kinds of devices, and takes half a millisecond.
    """
    seed = derived_seed(job_seed(args), epoch, step, os.environ.get('RANK', 0))
    torch.default_generator.manual_seed(seed)
    kind = getattr(args, 'device', torch.device('cuda')).type
    if kind != 'cpu':
        module = getattr(torch, kind)
        getattr(module, 'manual_seed_all', module.manual_seed)(seed)


def steps_left(loader, progress, model, optimizer, epoch, args):
    """The numbered batches that a resumed epoch has left; between two of them the run can be saved and left."""
    if 'watch' not in args:
        args.watch = Watch(getattr(args, 'timeout', 600))
    first = first_step(args, epoch, loader.sampler)
    if first and is_rank_zero():
        for meter, (meter.sum, meter.count) in zip(progress.meters, getattr(args, 'meters_done', ())):
            meter.avg = meter.sum / max(meter.count, 1)
    if not args.watch.goes_on():
        leave(lambda: None, args)
    step = first
    for step, batch in enumerate(loader, first + 1):
        args.watch.beat()
        seed_step(args, epoch, step)
        yield step - 1, batch
        stops = not args.watch.goes_on()
        save = functools.partial(save_step, model, optimizer, progress, epoch, step, args)
        if stops:
            leave(save, args)
        if args.save_every > 0 and step % args.save_every == 0:
            save()
    args.watch.save = functools.partial(save_step, model, optimizer, progress, epoch, step, args)


def left_if_asked(loader, args):
    """The batches of a validation, which is left at once where all ranks are to stop: a resumed run begins it anew."""
    watch = getattr(args, 'watch', None)  # none with --evaluate
    for batch in loader:
        if watch and watch.is_last():
            leave(watch.save, args)
        yield batch
    if watch and not watch.goes_on():
        leave(watch.save, args)
