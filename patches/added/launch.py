"""Inserted by `any_launcher`."""

import os
import re


def join_launch(args):
    """Settle in the environment where this process stands in the job, and `args.local_rank` by it.

    torchrun and torch.distributed.launch have done so already. Under srun SLURM knows; without any launcher the
    world is this one process. The environment wins over --local_rank, which some wrappers pass alike to all.
    """
    env = os.environ
    if 'RANK' in env:
        env.setdefault('LOCAL_RANK', str(max(args.local_rank, 0)))
    elif 'SLURM_STEP_NUM_TASKS' in env:
        tasks = [int(n) for count, times in re.findall(r'(\d+)(?:\(x(\d+)\))?', env['SLURM_STEP_TASKS_PER_NODE'])
                 for n in [count] * int(times or 1)]
        head, first, tail = re.match(r'([^,[]*)(?:\[([^],-]*)[^]]*\]([^,]*))?', env['SLURM_STEP_NODELIST']).groups('')
        env.setdefault('MASTER_ADDR', head + first + tail)
        env.setdefault('MASTER_PORT', str(15000 + int(env['SLURM_JOB_ID']) % 15000))
        env['RANK'], env['WORLD_SIZE'] = env['SLURM_PROCID'], env['SLURM_STEP_NUM_TASKS']
        env['LOCAL_RANK'] = env['SLURM_LOCALID']
        env['LOCAL_WORLD_SIZE'] = str(tasks[int(env['SLURM_NODEID'])])
    else:
        print('no launcher: this one process is the whole world', flush=True)
        env.update(RANK='0', WORLD_SIZE='1', LOCAL_RANK=str(max(args.local_rank, 0)), LOCAL_WORLD_SIZE='1')
        env.update(MASTER_ADDR='127.0.0.1', MASTER_PORT='0')
    args.local_rank = int(env['LOCAL_RANK'])
    return args
