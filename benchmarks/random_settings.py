"""Random settings that a random script is held against itself under."""

import random

EXACT = {
    "fuse_grad_size_in_MB": ("0.0625", "0.1", "0.25", "25"),
    "fuse_all_reduce_ops": ("off",),
    "fuse_grad_size_in_TFLOPS": ("1", "2"),
    "last_comm_group_size_MB": ("0.0625", "0.1"),
    "nccl_comm_num": ("2", "3"),
    "sync_nccl_allreduce": ("on",),
    "use_hierarchical_allreduce": ("on",),
    "num_threads": ("1", "2"),
    "num_iteration_per_drop_scope": ("3", "30"),
    "loader_num_workers": ("1",),
    "fuse_all_optimizer_ops": ("on",),
}
INEXACT = {
    "fp16_allreduce": {"fp16_allreduce_dtype": ("bf16", "fp16")},
    "localsgd": {"localsgd_k_steps": ("2", "3", "5"), "localsgd_begin_step": ("1", "4")},
    "adaptive_localsgd": {"adaptive_localsgd_init_k_steps": ("2", "3")},
    "gradient_merge": {"gradient_merge_k_steps": ("2", "3"), "gradient_merge_avg": ("on", "off")},
    "dgc": {"dgc_rank": ("1", "2")},
    "amp": {"amp_dtype": ("bf16",)},
}
REDUCTION = {
    "fuse_grad_size_in_MB": ("0.0625", "0.1", "0.25", "25"),
    "fuse_all_reduce_ops": ("off",),
    "fuse_grad_size_in_TFLOPS": ("1", "2"),
    "last_comm_group_size_MB": ("0.0625", "0.1"),
    "bucket_cap_mb_list": ("0.07+0.2",),
    "batched_grad_copy": ("on",),
    "nccl_comm_num": ("2", "3"),
    "sync_nccl_allreduce": ("on",),
    "find_unused_parameters": ("off",),
}
OTHER = {
    "num_threads": ("1", "2"),
    "num_iteration_per_drop_scope": ("3", "30"),
    "fuse_all_optimizer_ops": ("on",),
}
LOADING = {
    "loader_num_workers": ("1", "2"),
    "loader_prefetch_factor": ("4",),
    "loader_persistent_workers": ("on",),
}
SHARDING = {
    "sharding_stage": ("2",),
    "sharding_gather_ranks": ("2",),
    "sharding_forward_prefetch": ("1", "2"),
    "sharding_backward_prefetch": ("2",),
    "sharding_separate_reduction": ("on",),
    "sharding_reduce_buffers": ("2",),
}
LOCAL = ("localsgd", "adaptive_localsgd")


def draw_any(draw: random.Random) -> dict[str, str]:
    """For an ordinary script."""
    settings: dict[str, str] = {}
    for _ in range(draw.choice((1, 1, 2, 2, 3))):
        knob = draw.choice(sorted(EXACT))
        settings[knob] = draw.choice(EXACT[knob])
    if draw.random() < 0.3:
        settings |= _draw_inexact(draw)
    if "use_hierarchical_allreduce" in settings:
        settings["hierarchical_allreduce_inter_nranks"] = "2"
    if "loader_num_workers" in settings and draw.random() < 0.5:
        settings["loader_prefetch_factor"] = "4"
    return settings


def draw_for(draw: random.Random, group: str, ranks: int) -> dict[str, str]:
    """For a script of a kind: of the `group` reduction, loading or sharding."""
    own = {"reduction": REDUCTION, "loading": LOADING, "sharding": SHARDING}[group]
    settings: dict[str, str] = {}
    for _ in range(draw.choice((1, 1, 2))):
        knob = draw.choice(sorted(own))
        settings[knob] = draw.choice(own[knob])
    if group == "loading" and draw.random() < 0.5:
        settings = {}
    more = {**OTHER, **(REDUCTION if group != "sharding" else {})}
    if not settings or draw.random() < 0.3:
        knob = draw.choice(sorted(more))
        settings[knob] = draw.choice(more[knob])
    if ranks == 4 and group == "reduction" and draw.random() < 0.3:
        settings |= {"use_hierarchical_allreduce": "on", "hierarchical_allreduce_inter_nranks": "2"}
    if draw.random() < 0.25:
        settings |= _draw_inexact(draw)
    return settings


def _draw_inexact(draw: random.Random) -> dict[str, str]:
    name = draw.choice(sorted(INEXACT))
    return {name: "on"} | {knob: draw.choice(values) for knob, values in INEXACT[name].items()}
