"""Inserted by `any_device`."""

import argparse
import collections
import datetime
import os
import signal

import torch
import torch.distributed as dist
import torch.nn as nn

from patches.added.fail import fail

parser = argparse.ArgumentParser()
parser.add_argument('--device',
                    default=None,
                    metavar='DEVICE',
                    help='cuda, cpu or another kind of device (default: CUDA where there is any, else another '
                    'accelerator, else the CPU)')


parser.add_argument('--timeout',
                    default=600,
                    type=float,
                    metavar='S',
                    help='seconds without any progress after which the job ends (default: 600)')


def device_kind(name):
    """The kind of device to use and how many of it this process sees; the CPU has no number, so 0."""
    accelerator = getattr(torch, 'accelerator', None)
    if name is None and torch.cuda.device_count() > 0:
        name = 'cuda'
    elif name is None and accelerator is not None and accelerator.is_available():
        name = accelerator.current_accelerator().type
    kind = (name or 'cpu').partition(':')[0]
    if kind == 'cpu':
        return kind, 0
    count = torch.cuda.device_count() if kind == 'cuda' else getattr(torch, kind).device_count()
    if count == 0:
        fail('--device {}: there is none here, or none is visible'.format(name))
    return kind, count


def select_device(name, index, processes=1):
    """The device number `index`, made current; `processes` of them on this host want one each."""
    kind, count = device_kind(name)
    if kind == 'cpu':
        return torch.device('cpu')
    if max(processes, index + 1) > count:
        fail('{} processes on this node, {} GPUs visible (CUDA_VISIBLE_DEVICES={})'.format(
            max(processes, index + 1), count, os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')))
    if kind == 'cuda':
        torch.cuda.set_device(index)
    elif hasattr(getattr(torch, kind), 'set_device'):
        getattr(torch, kind).set_device(index)
    return torch.device(kind, index)


def join_process_group(args):
    """Take this rank's device, and only then join: what NCCL sets up goes to the current device.

    Where another rank has ended meanwhile, to join waits for it, and no handler in Python is called. So
    SIGTERM does here what it does by default: until the group is there, there is nothing to leave in order.
    """
    local_rank = int(os.environ.get('LOCAL_RANK', 0))
    args.device = select_device(args.device, local_rank, int(os.environ.get('LOCAL_WORLD_SIZE', 1)))
    timeout = datetime.timedelta(seconds=args.timeout + 20)  # the watch of the ranks knows more, and speaks first
    handler = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    options = {'timeout': timeout}
    if 'TORCHELASTIC_RESTART_COUNT' in os.environ:  # its store still has the addresses of the start before
        store, rank, world = next(dist.rendezvous('env://', timeout=timeout))
        store.set_timeout(timeout)
        store = dist.PrefixStore('start{}'.format(os.environ['TORCHELASTIC_RESTART_COUNT']), store)
        options.update(store=store, rank=rank, world_size=world)
    if args.device.type == 'cuda':
        dist.init_process_group(backend='nccl', device_id=args.device, **options)
    else:
        dist.init_process_group(backend='gloo' if args.device.type == 'cpu' else None, **options)
    signal.signal(signal.SIGTERM, handler)


def home_device(name, gpus):
    """The device that holds the model: the first of `gpus`, or where there are none any other."""
    if gpus and name in (None, 'cuda'):
        return select_device('cuda', gpus[0])
    return select_device(name, 0)


def data_parallel(model, gpus, device):
    """The model on `gpus`; on another device the same model, also under the name `module`."""
    if device.type == 'cuda':
        return nn.DataParallel(model, device_ids=gpus, output_device=gpus[0])
    return nn.Sequential(collections.OrderedDict(module=model))
