"""The named series: which patches, in which order, with which options.

A series is a mapping of patch name to options, applied from top to bottom.  A
name is that of a module in this folder.  A mapping rather than a tuple, so that a
series can extend another in place (`guide | {...}` keeps the order of `guide`,
replaces options and appends what is new), and so that no patch can be in it twice.
Names rather than classes, so that reading this file does not import LibCST.
"""

guide = {
    "local_rank_from_env": {},
    "reshape_topk": {},
    "configurable_gpus": {},
}

standard = guide | {
    "local_rank_from_env": {"fallback": True},
    "configurable_gpus": {"optional": True},
    "any_launcher": {},
    "any_device": {},
    "ended_process_group": {},
    "rank_zero": {},
    "topology_line": {},
    "world_size": {},
    "node_batch": {},
    "val_sampler": {},
    "bare_validation": {},
    "exact_validation": {},
    "train_meters": {},
    "finite_loss": {},
    "arch_choices": {},
    "model_for_data": {},
    "train_classes": {},
    "topk_classes": {},
    "loader_workers": {},
    "seeded_run": {},
    "bad_images": {},
    "argument_checks": {},
    "expected_world": {},
    "quick_help": {},
    "printed_warnings": {},
    "output_dir": {},
    "whole_files": {},
    "whole_state": {},
    "resume": {},
    "samples_left": {},
    "saved_steps": {},
    "loader_signals": {},
}

SERIES = {"guide": guide, "standard": standard}
DEFAULT = "standard"
