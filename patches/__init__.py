"""The named series: which patches, in which order, with which options.

A series is a mapping of patch name to options, applied from top to bottom. A
name is that of a module in this folder. A mapping rather than a tuple, so that a
series can extend another in place (`guide | {...}` keeps the order of `guide`,
replaces options and appends what is new), and so that no patch can be in it twice.
Names rather than classes, so that reading this file does not import LibCST.
"""

Series = dict[str, dict[str, object]]

guide: Series = {  # the three edits of the vendor's guide
    "local_rank_from_env": {},
    "reshape_topk": {},
    "configurable_gpus": {},
}

start: Series = {  # anywhere: under any launcher, on any device
    "local_rank_from_env": {"fallback": True},
    "configurable_gpus": {"optional": True},
    "any_launcher": {},
    "any_device": {},
    "ended_process_group": {},
    "rank_zero": {},
    "topology_line": {},
    "argument_checks": {},
    "expected_world": {},
    "same_job": {},
    "printed_warnings": {},
}

numbers: Series = {  # that are right at any world size
    "node_batch": {},
    "val_sampler": {},
    "bare_validation": {},
    "exact_validation": {},
    "train_meters": {},
    "finite_loss": {},
    "topk_classes": {},
    "seeded_run": {},
}

data: Series = {
    "arch_choices": {},
    "model_for_data": {},
    "train_classes": {},
    "loader_workers": {},
    "bad_images": {},
}

restart: Series = {  # and nothing is lost
    "output_dir": {},
    "whole_files": {},
    "resume": {},
    "samples_left": {},
    "saved_steps": {},
    "loader_signals": {},
    "kept_checkpoints": {},
    "step_limit": {},
    "val_interval": {},
}

record: Series = {  # what the run was like, for people and for plots
    "metrics_file": {},
    "printed_rate": {},
    "tensorboard_events": {},
    "profiled_steps": {},
    "exported_weights": {},
}

standard = guide | start | numbers | data | restart | record

inputs: Series = {  # that come as fast as the cores allow
    "fast_decoding": {},
    "prefetched_batches": {},
    "short_lived_workers": {},
}

step: Series = {  # as fast as the device allows, with the same numbers
    "mixed_precision": {},
    "channels_last": {},
    "fused_optimizer": {},
    "gradient_views": {},
    "compiled_model": {},
    "accumulated_batches": {},
    "synchronized_batchnorm": {},
    "ddp_advice": {},
}

fast = standard | inputs | step

recipe: Series = {  # that trains a model well, and not only fast
    "optimizer_choice": {},
    "scheduled_rate": {},
    "clipped_gradients": {},
    "image_sizes": {},
    "mixed_images": {},
    "smoothed_labels": {},
    "averaged_weights": {},
    "repeated_images": {},
    "augmented_images": {},
    "model_options": {},
    "initial_weights": {},
    "recipes": {},
}

vit = fast | recipe

SERIES = {"guide": guide, "standard": standard, "fast": fast, "vit": vit}
DEFAULT = "standard"
