"""Rules of thumb and values to try are pinned by examples: no constant in them changes unseen."""

import sys
from collections.abc import Iterable
from dataclasses import fields

import pytest

from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.knob import Knob, KnobContext, Rule
from advisor.protocol.nodes.cluster import Cluster, DeviceKind, Node
from tests.unit.protocol.rule_mutants import make_mutants
from tests.unit.tuning.search_space import make_facts

MB = 2**20
GPU = {"device": DeviceKind.CUDA}
PLAN = Rule("1+8+25", "Computed of what was measured.")

RULES: dict[str, list[tuple[dict[str, object], tuple[object, ...]]]] = {
    "fuse_grad_size_in_MB": [
        ({"gradient_bytes": 0}, ()),
        ({"gradient_bytes": MB // 2}, ((1.0, "A bucket of 1 MB, Fleet's smallest, for the 0.5 MB"), 2.0)),
        ({"gradient_bytes": 10 * MB}, ((1.0, "About one tenth of the 10 MB of gradients"), (3.0, "A third"), 11.0)),
        ({"gradient_bytes": 40 * MB}, (4.0, 13.0, (41.0, "All gradients in one message"))),
        ({"gradient_bytes": 1023 * MB}, (102.0, 341.0, (1024.0, "All gradients in one message"))),
        (
            {"gradient_bytes": 5720 * MB},
            ((572.0, "About one tenth of the 5.72e+03 MB"), (1024.0, "The largest bucket, 1,024 MB: the 5.72e+03 MB")),
        ),
        ({"gradient_bytes": 20000 * MB}, ((1024.0, "The largest bucket, 1,024 MB"),)),
    ],
    "last_comm_group_size_MB": [({}, (1.0,))],
    "fuse_grad_size_in_TFLOPS": [
        ({"today": {"fuse_grad_size_in_TFLOPS": 50.0}}, ((20.0, "at most 20 layers"),)),
        ({"today": {"fuse_grad_size_in_TFLOPS": 21.0}}, (20.0,)),
        ({"today": {"fuse_grad_size_in_TFLOPS": 20.0}}, ((7.0, "A third of the layers"),)),
        ({"today": {"fuse_grad_size_in_TFLOPS": 0.0}}, (1.0,)),
    ],
    "bucket_cap_mb_list": [({}, ()), ({"computed": {"bucket_cap_mb_list": PLAN}}, (PLAN.value,))],
    "batched_grad_copy": [
        ({"parameter_tensors": 49}, ()),
        ({"parameter_tensors": 50}, (True,)),
        ({"parameter_tensors": 60, "ddp": {"gradient_as_bucket_view": True}}, ()),
        ({"parameter_tensors": 49, "ddp": {"gradient_as_bucket_view": True}}, ()),
    ],
    "find_unused_parameters": [({}, (False,))],
    "broadcast_buffers": [({}, (False,))],
    "defer_gradient_sync": [
        ({"exchanges_per_step": 0}, ()),
        ({"exchanges_per_step": 1}, ()),
        ({"exchanges_per_step": 2}, ((True, "Gradients are exchanged 2 times a step"),)),
    ],
    "nccl_comm_num": [({"nodes": 1}, (1,)), ({"nodes": 2}, ((2, "Two communicators on several machines."),))],
    "use_hierarchical_allreduce": [({}, (True,))],
    "hierarchical_allreduce_inter_nranks": [({"local_world_size": 8}, ((8, "ranks of one node"),))],
    "fp16_allreduce": [({}, (True,))],
    "localsgd": [({}, (True,))],
    "localsgd_k_steps": [({}, ((4, "k = 4"), 2))],
    "adaptive_localsgd": [({}, (True,))],
    "adaptive_localsgd_init_k_steps": [({}, (4, 2))],
    "gradient_merge": [({}, (True,))],
    "gradient_merge_k_steps": [({}, (2,))],
    "amp": [({}, ()), (GPU, (True,))],
    "dgc": [({}, (True,))],
    "activation_checkpointing": [
        ({"recomputed": {"per_step": 12, "seconds": 0.05}}, ((False, "12 calls a step are computed again, 50 ms"),)),
    ],
    "num_threads": [
        # A rank's share of the cores, one, and the documents' 2 a processor or 4 a GPU where the share is larger.
        ({"cpus": (12,)}, ((6, "12 CPUs shared by its 2 ranks."), 1, (2, " 2 threads a device on processors."))),
        ({"cpus": (12,), **GPU}, (6, 1, (4, "4 threads a device on GPUs."))),
        ({"cpus": (8,), **GPU}, (4, 1)),
        ({"cpus": (4,)}, (2, 1)),
        ({"cpus": (1,)}, (1,)),
        ({"cpus": (32, 6), "local_world_size": 1}, (6, 1, 2)),
        ({"cpus": (), "local_world_size": 1}, (1,)),
    ],
    "numa_binding": [({}, ("node",))],
    "FLAGS_fraction_of_gpu_memory_to_use": [({}, ((0.7, "0.7"), (0.98, "0.98")))],
    "fuse_all_optimizer_ops": [({}, ((True, "161"),))],
    "fuse_elewise_add_act_ops": [({}, (True,))],
    "fuse_bn_act_ops": [({}, (True,))],
    "cudnn_exhaustive_search": [({}, (True,))],
    "conv_workspace_size_limit": [({}, (4000,))],
    "num_iteration_per_drop_scope": [({}, ((30, "every 30 steps"),))],
    "num_iteration_per_run": [({}, (3,))],
    "NCCL_SOCKET_NTHREADS": [({}, (4,))],
    "NCCL_NSOCKS_PERTHREAD": [({}, (4,))],
    "NCCL_BUFFSIZE": [({}, (8 * MB,))],
    "NCCL_MIN_CTAS": [({}, (8,))],
    "NCCL_MAX_CTAS": [({}, (8,))],
    "NCCL_CTA_POLICY": [({}, (1,))],
    "nccl_tuner_allreduce": [
        ({"nodes": 2}, ("ring/simple",)),
        ({"nodes": 3}, ("tree/simple", f"tree/simple@{4 * MB}+ring/simple")),
    ],
    "PYTORCH_CUDA_ALLOC_CONF": [({}, ("expandable_segments:True",))],
    "batch_size_multiple": [({}, (2,))],
    "micro_batches": [({}, (2,))],
    "loader_num_workers": [
        # All but one of a rank's CPUs, at most 16, and two.
        ({"cpus": (12,)}, ((5, "One of a rank's 6 CPUs computes"), 2)),
        ({"cpus": (6,)}, (2,)),
        ({"cpus": (8,)}, (3, 2)),
        ({"cpus": (2,)}, ((1, "while the rank computes"),)),
        ({"cpus": (4,)}, ((1, "One of a rank's 2 CPUs computes"),)),
        ({"cpus": (96, 64)}, (16, 2)),
        ({"cpus": (32, 6), "local_world_size": 1}, (5, 2)),
        ({"cpus": (), "local_world_size": 1}, ((1, "while the rank computes"),)),
    ],
    "loader_prefetch_factor": [({}, (4,))],
    "loader_pin_memory": [({}, (True,))],
    "sharding_stage": [({}, (2,))],
    "sharding_gather_ranks": [({"local_world_size": 8}, (8,))],
    "sharding_forward_prefetch": [({}, (2, 1))],
    "sharding_backward_prefetch": [({}, (2,))],
    "sharding_separate_reduction": [({}, (True,))],
    "sharding_reduce_buffers": [({}, (2,))],
    "sharding_overlap": [({}, (True,))],
    "sharding_group_memory": [({}, (True,))],
}  # fmt: skip
"""Knob -> (what is the case, the values that its rule gives there; (value, words) where its reason has to say them)."""

GRIDS: dict[str, list[tuple[dict[str, object], tuple[object, ...]]]] = {
    "fuse_grad_size_in_TFLOPS": [
        ({"today": {"fuse_grad_size_in_TFLOPS": 100.0}}, (4.0, 7.0, 13.0, 20.0, 25.0, 50.0, 100.0)),
        ({"today": {"fuse_grad_size_in_TFLOPS": 50.0}}, (2.0, 4.0, 7.0, 13.0, 20.0, 25.0, 50.0)),
        ({"today": {"fuse_grad_size_in_TFLOPS": 64.0}}, (2.0, 4.0, 8.0, 16.0, 20.0, 32.0, 50.0, 64.0)),
        ({"today": {"fuse_grad_size_in_TFLOPS": 16.0}}, (1.0, 2.0, 4.0, 8.0, 16.0)),
    ],
    "bucket_cap_mb_list": [({"computed": {"bucket_cap_mb_list": PLAN}}, ("", PLAN.value))],
    "hierarchical_allreduce_inter_nranks": [
        ({"world_size": 12}, (2, 3, 4, 6)),
        ({"world_size": 256}, (2, 4, 8, 16, 32, 64)),
        ({"world_size": 130}, (2, 5, 10, 13, 26)),
        ({"world_size": 4}, (2,)),
        ({"world_size": 2}, ()),
    ],
    "localsgd_k_steps": [({}, (2, 4, 8, 16))],
    "adaptive_localsgd_init_k_steps": [({}, (2, 4, 8))],
    "gradient_merge_k_steps": [({}, (2, 4, 8))],
    "amp_dtype": [({}, ("bf16",)), (GPU, ("bf16", "fp16"))],
    "dgc_rank": [({}, (1, 2, 4))],
    "FLAGS_fraction_of_gpu_memory_to_use": [({}, (0.5, 0.7, 0.8, 0.92, 0.98))],
    "conv_workspace_size_limit": [({}, (256, 1000, 4000, 65536))],
    "num_iteration_per_drop_scope": [({}, (1, 10, 30, 100))],
    "num_iteration_per_run": [({}, (1, 3, 10, 100))],
    "NCCL_CGA_CLUSTER_SIZE": [({}, (0, 2, 4, 8))],
    "NCCL_CTA_POLICY": [({}, (0, 1))],
    "nccl_tuner_channels": [({}, (0, 2, 4, 8, 16, 32))],
    "batch_size_multiple": [({}, (2, 4))],
    "micro_batches": [({}, (2, 4))],
    "loader_num_workers": [
        ({"cpus": (12,)}, (0, 1, 2, 4, 5, 8)),
        ({"cpus": (2,)}, (0, 1, 2)),
        ({"cpus": (4,), "today": {"loader_num_workers": 5}}, (0, 1, 2, 4, 5)),
        ({"cpus": (96,)}, (0, 1, 2, 4, 8, 16)),
        ({"cpus": (30,), "local_world_size": 1}, (0, 1, 2, 4, 8, 16)),
        ({"cpus": (8,), "local_world_size": 1}, (0, 1, 2, 4, 7, 8, 16)),
    ],
    "loader_prefetch_factor": [({"today": {"loader_prefetch_factor": 3}}, (2, 3, 4, 8))],
    "sharding_gather_ranks": [({"local_world_size": 8, "today": {"sharding_gather_ranks": 4}}, (0, 4, 8))],
    "sharding_forward_prefetch": [({"today": {"sharding_forward_prefetch": 8}}, (0, 1, 2, 3, 4, 8))],
    "sharding_backward_prefetch": [({"today": {"sharding_backward_prefetch": 8}}, (1, 2, 3, 4, 8))],
    "sharding_reduce_buffers": [({"today": {"sharding_reduce_buffers": 8}}, (1, 2, 3, 4, 8))],
}  # fmt: skip
"""Knob -> (what is the case, the values that are tried there)."""

NO_RULE = next(field.default for field in fields(Knob) if field.name == "rule")
MODULES = sorted(
    {
        made.__module__
        for knob in CATALOGUE.values()
        for made in (knob.rule, knob.grid)
        if made not in (None, NO_RULE)
    }
)


def list_missed(knobs: Iterable[Knob]) -> list[str]:
    """The examples that these knobs do not keep."""
    found = []
    for knob in knobs:
        for situation, expected in RULES.get(knob.name, ()):
            rules = knob.rule(imagine(situation))
            pairs = [each if isinstance(each, tuple) else (each, "") for each in expected]
            if [rule.value for rule in rules] != [value for value, _ in pairs] or not all(
                type(rule.value) is type(value) and words in rule.because
                for rule, (value, words) in zip(rules, pairs, strict=True)
            ):
                found.append(f"{knob.name} under {situation}: {rules}")
        for situation, values in GRIDS.get(knob.name, ()):
            if (tried := knob.grid(imagine(situation))) != values:
                found.append(f"{knob.name} under {situation}: {tried}")
    return found


def imagine(situation: dict[str, object]) -> KnobContext:
    """Two nodes of two ranks on CPUs, but for what `situation` says of facts, `cpus` of nodes and values of `today`."""
    facts = dict(situation)
    cpus, today, computed = facts.pop("cpus", (8, 8)), facts.pop("today", {}), facts.pop("computed", {})
    return KnobContext(
        facts=make_facts(**facts),
        cluster=Cluster(
            nodes=tuple(Node(hostname=f"n{i}", cpu_count=n, memory_bytes=2**33) for i, n in enumerate(cpus))
        ),
        baseline={**{name: knob.default for name, knob in CATALOGUE.items()}, **today},
        catalogue=CATALOGUE,
        computed=computed,
    )


def test_every_rule_and_every_list_of_values_has_an_example() -> None:
    assert {name for name, knob in CATALOGUE.items() if knob.rule is not NO_RULE} == set(RULES)
    assert {name for name, knob in CATALOGUE.items() if knob.grid is not None} == set(GRIDS)


def test_rules_and_values_are_those_of_the_examples() -> None:
    assert not list_missed(CATALOGUE.values())


@pytest.mark.parametrize("module", MODULES)
def test_every_fault_in_a_rule_is_seen_by_an_example(module: str) -> None:
    """A new rule, or a constant, a bound or a comparison in one, fails here until an example tells it from its like."""
    unseen, count = [], 0
    for mutant in make_mutants(sys.modules[module]):
        count += 1
        try:
            if not list_missed(mutant.knobs):
                unseen.append(mutant.fault)
        except Exception:
            continue  # The fault ends the rule with an error: it is seen.
    assert count
    assert not unseen
