"""Inserted by `argument_checks`."""

from patches.added.fail import fail


def check_arguments(args):
    """Refuse numbers that end in a traceback of a library, or in a run that does nothing."""
    for option, least in (('batch-size', 1), ('epochs', 0), ('lr', 0), ('momentum', 0), ('print-freq', 1),
                          ('save-every', 0), ('start-epoch', 0), ('timeout', 1), ('weight-decay', 0), ('workers', 0)):
        value = getattr(args, option.replace('-', '_'), least)
        if not value >= least:
            fail('--{} {}: expected is {} or more'.format(option, value, least))
