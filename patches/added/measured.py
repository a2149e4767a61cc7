"""Inserted by `train_meters` and `exact_validation`."""


def measured(value):
    """A mean over one batch as a number for a meter that stays on its device: to read it there makes the host wait.

    In double precision, where the device has it, since the meters add up a whole epoch.
    """
    value = value.detach().reshape(())
    try:
        return value.double()
    except TypeError:  # Apple's devices have none
        return value
