"""Inserted by patches that look at the data set before anything starts."""

import os


def class_folders(folder):
    """The names of the folders in `folder`, which ImageFolder numbers in this order; none where it cannot be read."""
    if not os.path.isdir(folder):
        return []
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
