"""Inserted by `model_for_data`."""

import argparse
import os
import warnings

import torch
import torch.nn as nn
import torchvision.models as models

from patches.added.class_folders import class_folders
from patches.added.fail import fail
from patches.added.rank_zero import is_rank_zero

parser = argparse.ArgumentParser()
parser.add_argument('--num-classes',
                    default=None,
                    type=int,
                    metavar='N',
                    help='outputs of the model (default: one for each class in train/)')


def check_model(args):
    """Settle `args.num_classes`; refuse a model that cannot be trained here before anything has started."""
    found = len(class_folders(os.path.join(args.data, 'train')))
    if found == 0:
        fail('--data {}: there are no class folders in its train/'.format(args.data))
    if args.num_classes is None:
        args.num_classes = found
    if args.num_classes < found:
        fail('--num-classes {}: train/ has {} classes'.format(args.num_classes, found))
    reason = why_untrainable(args.arch, args.num_classes)
    if reason:
        fail('--arch {}: {}'.format(args.arch, reason))
    if args.pretrained:
        weights = models.get_model_weights(args.arch).__members__
        if 'IMAGENET1K_V1' not in weights:
            fail('--pretrained: torchvision has no IMAGENET1K_V1 weights for {}, only {}'.format(
                args.arch, ', '.join(weights) or 'none'))
        if int(os.environ.get('LOCAL_RANK', 0)) == 0:
            fetch_weights(weights['IMAGENET1K_V1'])


def fetch_weights(weights):
    """Download `weights` to where torch.hub keeps them, if they are not there; one line where that fails."""
    try:
        weights.get_state_dict(check_hash=True)
    except Exception as error:  # no network, no such file, no space, a file cut short: each library has its own
        fail('--pretrained: cannot get {} ({}: {}); a copy of it in {} is used'.format(
            weights.url, type(error).__name__, ' '.join(str(error).split()),
            os.path.join(torch.hub.get_dir(), 'checkpoints')))


def why_untrainable(arch, classes):
    """Why images of 224 x 224 and this loss cannot train `arch`, or None: tried with shapes alone, without numbers."""
    hooks = [
        nn.modules.module.register_module_parameter_registration_hook(
            lambda module, name, value: value if value is None else nn.Parameter(value.to('meta'))),
        nn.modules.module.register_module_buffer_registration_hook(
            lambda module, name, value: value if value is None else value.to('meta')),
    ]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')  # what torchvision says of a model that is refused is not the point
            model = models.get_model(arch, num_classes=classes)
    finally:
        for hook in hooks:
            hook.remove()
    try:
        output = model(torch.empty(2, 3, 224, 224, device='meta'))
    except RuntimeError as error:
        return 'it does not take images of 224 x 224 ({})'.format(str(error).partition('\n')[0])
    if not isinstance(output, torch.Tensor):
        return 'in training it gives {}, the loss takes one tensor'.format(type(output).__name__)
    return None


def build_model(arch, pretrained, classes):
    """The model with `classes` outputs, its weights random or those that `pretrained=True` has always meant.

    One process a node has fetched these, and reads them: DistributedDataParallel hands what rank 0 has to all others.
    A head for other classes than those of the weights is new.
    """
    if not pretrained or int(os.environ.get('LOCAL_RANK', 0)) > 0:
        return models.get_model(arch, num_classes=classes)
    weights = models.get_model_weights(arch).IMAGENET1K_V1
    whole = models.get_model(arch, weights=weights)
    if classes == len(weights.meta['categories']):
        return whole
    model = models.get_model(arch, num_classes=classes)
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    fitting = {name: value for name, value in whole.state_dict().items() if value.shape == shapes[name]}
    model.load_state_dict(fitting, strict=False)
    if is_rank_zero():
        new = ', '.join(name for name in shapes if name not in fitting)
        print('{}: {} start at random, for {} classes'.format(arch, new, classes))
    return model
