import argparse
import csv
import os
import random
import shutil
import time
import warnings

import torch
import torch.backends.cudnn as cudnn
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.parallel
import torch.optim
import torch.utils.data
import torch.utils.data.distributed
import torchvision.datasets as datasets
import torchvision.models as models
import torchvision.transforms as transforms

model_names = sorted(name for name in models.__dict__
                     if name.islower() and not name.startswith('__')
                     and callable(models.__dict__[name]))

parser = argparse.ArgumentParser(description='PyTorch ImageNet Training')
parser.add_argument('--data',
                    metavar='DIR',
                    default='/data/imagenet',
                    type=str,
                    help='folder that holds train/ and val/')
parser.add_argument('-a',
                    '--arch',
                    metavar='ARCH',
                    default='resnet18',
                    choices=model_names,
                    help='architecture, one of: ' + ', '.join(model_names))
parser.add_argument('-j',
                    '--workers',
                    default=4,
                    type=int,
                    metavar='N',
                    help='data loading workers')
parser.add_argument('--epochs',
                    default=90,
                    type=int,
                    metavar='N',
                    help='epochs in all')
parser.add_argument('--start-epoch',
                    default=0,
                    type=int,
                    metavar='N',
                    help='number of the first epoch after a restart')
parser.add_argument('-b',
                    '--batch-size',
                    default=3200,
                    type=int,
                    metavar='N',
                    help='images a step, in total over all GPUs of this node')
parser.add_argument('--lr',
                    '--learning-rate',
                    default=0.1,
                    type=float,
                    metavar='LR',
                    dest='lr',
                    help='learning rate of the first epochs')
parser.add_argument('--momentum',
                    default=0.9,
                    type=float,
                    metavar='M',
                    help='momentum of SGD')
parser.add_argument('--wd',
                    '--weight-decay',
                    default=1e-4,
                    type=float,
                    metavar='W',
                    dest='weight_decay',
                    help='weight decay of SGD')
parser.add_argument('-p',
                    '--print-freq',
                    default=10,
                    type=int,
                    metavar='N',
                    help='print a line every N batches')
parser.add_argument('-e',
                    '--evaluate',
                    dest='evaluate',
                    action='store_true',
                    help='validate once, without training')
parser.add_argument('--pretrained',
                    dest='pretrained',
                    action='store_true',
                    help='start from the weights that torchvision offers')
parser.add_argument('--seed',
                    default=None,
                    type=int,
                    help='number that seeds random and torch')

best_acc1 = 0


def main():
    args = parser.parse_args()

    if args.seed is not None:
        random.seed(args.seed)
        torch.manual_seed(args.seed)
        cudnn.deterministic = True
        warnings.warn('--seed asks cuDNN for deterministic kernels only, '
                      'and these can be a good deal slower.')

    gpus = [0, 1, 2, 3]
    main_worker(gpus=gpus, args=args)


def main_worker(gpus, args):
    global best_acc1

    if args.pretrained:
        print('{}: torchvision weights'.format(args.arch))
        model = models.__dict__[args.arch](pretrained=True)
    else:
        print('{}: random weights'.format(args.arch))
        model = models.__dict__[args.arch]()

    # DataParallel keeps the weights on its first GPU.
    torch.cuda.set_device('cuda:{}'.format(gpus[0]))
    model.cuda()
    model = nn.DataParallel(model, device_ids=gpus, output_device=gpus[0])

    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(),
                                lr=args.lr,
                                momentum=args.momentum,
                                weight_decay=args.weight_decay)

    cudnn.benchmark = True

    # Mean and spread of red, green and blue over ImageNet.
    normalize = transforms.Normalize((0.485, 0.456, 0.406),
                                     (0.229, 0.224, 0.225))
    train_pipeline = transforms.Compose([
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(), normalize
    ])
    eval_pipeline = transforms.Compose([
        transforms.Resize(256),
        transforms.CenterCrop(224),
        transforms.ToTensor(), normalize
    ])

    train_images = datasets.ImageFolder(os.path.join(args.data, 'train'),
                                        transform=train_pipeline)
    train_loader = torch.utils.data.DataLoader(train_images,
                                               shuffle=True,
                                               batch_size=args.batch_size,
                                               num_workers=2,
                                               pin_memory=True)
    val_loader = torch.utils.data.DataLoader(datasets.ImageFolder(
        os.path.join(args.data, 'val'), transform=eval_pipeline),
                                             shuffle=False,
                                             batch_size=args.batch_size,
                                             num_workers=2,
                                             pin_memory=True)

    if args.evaluate:
        validate(val_loader, model, criterion, args)
        return

    epoch_log = 'dataparallel.csv'

    for epoch in range(args.start_epoch, args.epochs):
        began = time.time()
        adjust_learning_rate(optimizer, epoch, args)

        train(train_loader, model, criterion, optimizer, epoch, args)
        acc1 = validate(val_loader, model, criterion, args)
        seconds = time.time() - began

        # Each epoch is saved, and copied where it is the best so far.
        is_best = acc1 > best_acc1
        best_acc1 = max(acc1, best_acc1)

        day_and_time = time.strftime('%Y-%m-%d %H:%M:%S',
                                     time.localtime(began))
        with open(epoch_log, 'a+', newline='') as log_file:
            csv.writer(log_file).writerow([day_and_time, seconds])

        save_checkpoint(
            {
                'arch': args.arch,
                'epoch': epoch + 1,
                'best_acc1': best_acc1,
                'state_dict': model.module.state_dict()
            }, is_best)


def train(train_loader, model, criterion, optimizer, epoch, args):
    step_time = AverageMeter('Time', ':6.3f')
    wait_time = AverageMeter('Data', ':6.3f')
    loss_meter = AverageMeter('Loss', ':.4e')
    acc1_meter = AverageMeter('Acc@1', ':6.2f')
    acc5_meter = AverageMeter('Acc@5', ':6.2f')
    progress = ProgressMeter(
        len(train_loader),
        [step_time, wait_time, loss_meter, acc1_meter, acc5_meter],
        prefix='Epoch: [{}]'.format(epoch))

    model.train()
    since = time.time()

    for i, (inputs, labels) in enumerate(train_loader):
        wait_time.update(time.time() - since)

        inputs = inputs.cuda(non_blocking=True)
        labels = labels.cuda(non_blocking=True)
        count = labels.size(0)

        scores = model(inputs)
        loss = criterion(scores, labels)
        acc1, acc5 = accuracy(scores, labels, topk=(1, 5))

        loss_meter.update(loss.item(), count)
        acc1_meter.update(acc1[0], count)
        acc5_meter.update(acc5[0], count)

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        now = time.time()
        step_time.update(now - since)
        since = now
        if i % args.print_freq == 0:
            progress.display(i)


def validate(val_loader, model, criterion, args):
    step_time = AverageMeter('Time', ':6.3f')
    loss_meter = AverageMeter('Loss', ':.4e')
    acc1_meter = AverageMeter('Acc@1', ':6.2f')
    acc5_meter = AverageMeter('Acc@5', ':6.2f')
    progress = ProgressMeter(len(val_loader),
                             [step_time, loss_meter, acc1_meter, acc5_meter],
                             prefix='Test: ')

    model.eval()
    since = time.time()

    with torch.no_grad():
        for i, (inputs, labels) in enumerate(val_loader):
            inputs = inputs.cuda(non_blocking=True)
            labels = labels.cuda(non_blocking=True)
            count = labels.size(0)

            scores = model(inputs)
            loss = criterion(scores, labels)
            acc1, acc5 = accuracy(scores, labels, topk=(1, 5))

            loss_meter.update(loss.item(), count)
            acc1_meter.update(acc1[0], count)
            acc5_meter.update(acc5[0], count)

            now = time.time()
            step_time.update(now - since)
            since = now
            if i % args.print_freq == 0:
                progress.display(i)

    print(' * Acc@1 {:.3f} Acc@5 {:.3f}'.format(acc1_meter.avg,
                                                acc5_meter.avg))
    return acc1_meter.avg


def save_checkpoint(state, is_best, filename='checkpoint.pth.tar'):
    """Writes the state to a file, and once more where it is the best."""
    torch.save(state, filename)
    if is_best:
        shutil.copyfile(filename, 'model_best.pth.tar')


class AverageMeter(object):
    """The newest value of a quantity, and its mean weighted by count."""
    def __init__(self, name, fmt=':f'):
        self.name = name
        self.fmt = fmt
        self.reset()

    def reset(self):
        self.val = self.sum = self.count = self.avg = 0

    def update(self, val, n=1):
        self.count += n
        self.sum += n * val
        self.val, self.avg = val, self.sum / self.count

    def __str__(self):
        field = '{' + self.fmt + '}'
        newest, mean = field.format(self.val), field.format(self.avg)
        return self.name + ' ' + newest + ' (' + mean + ')'


class ProgressMeter(object):
    """Prints one line: where the loop is, then every meter."""
    def __init__(self, num_batches, meters, prefix=''):
        self.prefix = prefix
        self.meters = meters
        self.last = str(num_batches)

    def display(self, batch):
        # As wide as the last number: the lines of a loop stay in columns.
        number = str(batch).rjust(len(self.last))
        position = '{}[{}/{}]'.format(self.prefix, number, self.last)
        print(position, *self.meters, sep='\t')


def adjust_learning_rate(optimizer, epoch, args):
    """Divides the learning rate by ten every 30 epochs."""
    lr = args.lr * 0.1**(epoch // 30)
    for group in optimizer.param_groups:
        group['lr'] = lr


def accuracy(output, target, topk=(1, )):
    """Percentage of rows whose target is among the k largest outputs."""
    with torch.no_grad():
        # One row for each place, from the best guess down.
        _, ranked = output.topk(max(topk), 1)
        ranked = ranked.t()
        correct = ranked.eq(target.view(1, -1).expand_as(ranked))

        res = []
        for k in topk:
            correct_k = correct[:k].view(-1).float().sum(0, keepdim=True)
            res.append(correct_k.mul_(100.0 / target.size(0)))
        return res


if __name__ == '__main__':
    main()