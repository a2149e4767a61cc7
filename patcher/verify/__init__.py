"""Whether the scripts train here: the machine, the build, and real training with its results."""
