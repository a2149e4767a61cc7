"""Inserted by `whole_state` and `resume`."""

import os

from patches.added.class_folders import class_folders
from patches.added.job_seed import job_seed


def bare(model):
    """The model without what wraps it for several devices or compiles it: the keys of a checkpoint are its own."""
    while hasattr(model, 'module') or hasattr(model, '_orig_mod'):
        model = model.module if hasattr(model, 'module') else model._orig_mod
    return model


def whole_state(state, model, optimizer, args, **more):
    """`state` with all that a run needs to go on from it: tensors and plain Python, no code.

    States of random generators are not in it. What training draws follows from `seed`, epoch, step and rank, so any
    number of ranks can go on; a state for each rank fits the same number only.
    """
    settings = ('epochs', 'batch_size', 'lr', 'momentum', 'weight_decay', 'seed', 'num_classes', 'pretrained')
    whole = dict(state, step=0, images=0, meters=[])
    whole['best_acc1'] = float(state['best_acc1'])
    whole['state_dict'] = bare(model).state_dict()
    whole['optimizer'] = optimizer.state_dict()
    whole['classes'] = class_folders(os.path.join(args.data, 'train'))
    whole['args'] = {name: getattr(args, name) for name in settings if name in args}
    whole['seed'] = job_seed(args)
    whole['run'] = getattr(args, 'run', '')
    whole['world_size'] = int(os.environ.get('WORLD_SIZE', 1))
    return dict(whole, **more)
