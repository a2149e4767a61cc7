"""Inserted by `resume`."""

import argparse
import os
import re
import shutil
import sys
import uuid
import zipfile

import torch
import torch.distributed as dist

from patches.added.checkpoint import bare
from patches.added.class_folders import class_folders
from patches.added.fail import fail
from patches.added.rank_zero import is_rank_zero, print_once
from patches.added.whole_file import link_whole

parser = argparse.ArgumentParser()
parser.add_argument('--resume',
                    default=None,
                    metavar='PATH',
                    help='go on from this checkpoint; auto: from the newest whole one in the output folder, '
                    'or from the start where there is none')
parser.add_argument('--overwrite',
                    action='store_true',
                    help='start anew even where the output folder has a checkpoint, which will be replaced')


def checkpoints_here():
    """The files in the output folder that hold a checkpoint, or should."""
    names = ('checkpoint.pth.tar', 'checkpoint_previous.pth.tar', 'model_best.pth.tar')
    return [name for name in names if os.path.lexists(name)]


def check_resume(args):
    """Refuse a run that has no weights to evaluate, or would replace a checkpoint of another one."""
    if args.evaluate and not (args.resume or args.pretrained):
        fail('--evaluate: there are no weights; name a checkpoint with --resume, or ask for --pretrained ones')
    if args.resume and args.resume != 'auto' and not os.path.isfile(args.resume):
        fail('--resume {}: there is no such file'.format(args.resume))
    found = checkpoints_here()
    if found and not (args.resume or args.overwrite or args.evaluate):
        fail('{} is there already, and would be replaced: go on from it with --resume auto, write elsewhere with '
             '--output-dir, or allow it with --overwrite'.format(os.path.abspath(found[0])))


def check_room(model):
    """End the run where the disk cannot hold its checkpoints: last, previous, best, and one that is being written."""
    tensors = [*bare(model).state_dict().values(), *bare(model).parameters()]  # the optimizer has one for each
    needed = 4 * sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    files = {os.stat(name).st_ino: os.stat(name).st_size for name in checkpoints_here() if os.path.exists(name)}
    room = shutil.disk_usage('.').free + sum(files.values())
    if room < needed:
        fail('{}: {:.1f} MB free, and checkpoints take up to {:.1f} MB; choose another --output-dir'.format(
            os.getcwd(), room / 2**20, needed / 2**20))


def read_checkpoint(path):
    """What is in a checkpoint; ValueError says why it is none. Tensors are not read before they are used."""
    try:
        mapped = zipfile.is_zipfile(path)  # torch wrote another kind before 1.6
        if mapped and zipfile.ZipFile(path).testzip():  # torch compares no checksums
            raise ValueError('a checksum does not fit')
        state = torch.load(path, map_location='cpu', weights_only=True, mmap=mapped or None)
    except Exception as error:  # what is no checkpoint may make an unpickler raise anything
        raise ValueError('{}: cannot be read: {}'.format(path, str(error).partition('\n')[0])) from None
    missing = {'epoch', 'arch', 'state_dict', 'best_acc1'} - set(state if isinstance(state, dict) else ())
    if missing:
        raise ValueError('{}: not a checkpoint of this script, it has no {}'.format(path, ', '.join(sorted(missing))))
    return state


def newest_checkpoint():
    """The whole checkpoint in this folder that has come furthest, if any, and a line on each that is not whole.

    Of another run than the first of them nothing counts: what it has left here may have come further.
    """
    found, broken = [], []
    for path in checkpoints_here():
        try:
            state = read_checkpoint(path)
        except ValueError as error:
            broken.append(str(error))
            continue
        if not found or state.get('run') == found[0][1]:
            found.append(((state['epoch'], state.get('step', 0)), state.get('run'), path))
    return max(found, key=lambda one: one[0])[2] if found else None, broken


def chosen_checkpoint(args):
    """The path to resume from, or None: rank 0 chooses for all, so that all begin alike."""
    path = args.resume if args.resume != 'auto' else None
    if args.resume == 'auto' and is_rank_zero():
        path, broken = newest_checkpoint()
        for line in broken:
            print('{}: {}'.format(os.path.basename(sys.argv[0]), line), file=sys.stderr, flush=True)
        if broken and not path:
            fail('--resume auto: no checkpoint in {} is whole'.format(os.getcwd()))
        elif path not in (None, 'checkpoint.pth.tar') and not args.evaluate:
            link_whole(path, 'checkpoint.pth.tar')  # or a broken one would become the previous one, in its place
        if not path:
            print('--resume auto: no checkpoint in {}, this run starts anew'.format(os.getcwd()), flush=True)
    if dist.is_available() and dist.is_initialized():
        paths = [path]
        dist.broadcast_object_list(paths, 0)
        path = paths[0]
    return path


def load_weights(model, state, path):
    """Load the weights of a checkpoint, whichever wrappers the model had that they were saved from."""
    weights = {re.sub(r'^(module\.|_orig_mod\.)+', '', name): value for name, value in state['state_dict'].items()}
    own = bare(model).state_dict()
    wrong = ['missing {}'.format(name) for name in own if name not in weights]
    wrong += ['unexpected {}'.format(name) for name in weights if name not in own]
    wrong += ['{} is {}, not {}'.format(name, list(weights[name].shape), list(own[name].shape)) for name in own
              if name in weights and weights[name].shape != own[name].shape]
    if wrong:
        fail('{}: not the weights of this model: {}'.format(path, ', '.join(wrong[:6] + ['...'] * (len(wrong) > 6))))
    bare(model).load_state_dict(weights)


def load_progress(optimizer, state, args):
    """Go on where the checkpoint ends; the settings are those of the command line, and a line says which are others."""
    world, settings = int(os.environ.get('WORLD_SIZE', 1)), state.get('args', {})
    lines = []
    if 'optimizer' in state:
        own = [dict(group) for group in optimizer.param_groups]
        optimizer.load_state_dict(state['optimizer'])
        for kept in optimizer.state.values():  # or the file keeps its room on the disk when it has been replaced
            kept.update({name: value.clone() for name, value in kept.items() if isinstance(value, torch.Tensor)})
        for group, settings_here in zip(optimizer.param_groups, own):
            group.update(settings_here)
    else:
        lines.append('there is no optimizer in it: its momentum starts at zero')
    args.start_epoch, args.best_acc1 = state['epoch'], float(state['best_acc1'])
    if args.best_acc1 > 100:
        lines.append('its best Acc@1, {:.3f} %, cannot be: forgotten'.format(args.best_acc1))
        args.best_acc1 = 0.
    args.run, args.images_done = state.get('run') or args.run, state.get('images', 0)
    args.meters_done = state.get('meters', [])
    if 'seed' in state and args.seed is None:
        args.job_seed = state['seed']
    old = dict(settings, world_size=state.get('world_size', world))
    new = dict(vars(args), world_size=world)
    for values in (old, new):
        values['global_batch'] = values.get('batch_size', 0) * values['world_size']
    for name in ('world_size', 'global_batch', 'lr', 'momentum', 'weight_decay', 'seed'):
        if name in old and settings and old[name] != new[name]:
            lines.append('{} was {}, is {}'.format(name, old[name], new[name]))
    again = args.images_done % new['global_batch'] if args.images_done else 0
    if again and old['global_batch'] != new['global_batch']:
        lines.append('the last {} images of its unfinished epoch are trained again'.format(again))
    return lines


def resumed(optimizer, model, args):
    """`optimizer`, and with it `model` and the progress in `args`, as the checkpoint of --resume has them."""
    args.best_acc1, args.run = 0., uuid.uuid4().hex
    if is_rank_zero() and not args.evaluate:
        check_room(model)
    path = chosen_checkpoint(args) if args.resume else None
    if path is None:
        if args.evaluate and not args.pretrained:
            fail('--evaluate: there are no weights in {}'.format(os.getcwd()))
        return optimizer
    try:
        state = read_checkpoint(path)
    except ValueError as error:
        fail('--resume {}'.format(error))
    classes = class_folders(os.path.join(args.data, 'train'))
    if state['arch'] != args.arch:
        fail('--resume {}: it is of {}, --arch says {}'.format(path, state['arch'], args.arch))
    if state.get('classes', classes) != classes:
        others = sorted(set(state['classes']) ^ set(classes))
        fail('--resume {}: it has {} classes, train/ has {}; not in both: {}'.format(
            path, len(state['classes']), len(classes), ', '.join(others[:6] + ['...'] * (len(others) > 6))))
    load_weights(model, state, path)
    lines = load_progress(optimizer, state, args)
    print_once('{}: {} epochs and {} steps are done, best Acc@1 {:.3f}{}'.format(
        path, state['epoch'], state.get('step', 0), args.best_acc1, ''.join('; ' + line for line in lines)))
    return optimizer
