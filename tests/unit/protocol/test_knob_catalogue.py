"""The knob catalogue: complete against the Fleet documents, and sound in itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.protocol.kinds import Effect, Place, Scale, Switch
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.knob import Knob
from advisor.protocol.knobs.paddle import Reach, reach_of
from advisor.protocol.knobs.strategy import DistributedStrategy

DOCUMENTED = {
    Place.STRATEGY: (
        "auto", "a_sync", "sync_nccl_allreduce", "nccl_comm_num", "use_hierarchical_allreduce",
        "hierarchical_allreduce_inter_nranks", "sync_batch_norm", "fuse_all_reduce_ops", "fuse_grad_size_in_MB",
        "fuse_grad_size_in_TFLOPS", "cudnn_exhaustive_search", "conv_workspace_size_limit",
        "cudnn_batchnorm_spatial_persistent", "localsgd", "localsgd_k_steps", "localsgd_begin_step",
        "adaptive_localsgd", "adaptive_localsgd_init_k_steps", "gradient_merge", "gradient_merge_k_steps", "amp",
    ),
    Place.BUILD_STRATEGY: (
        "enable_sequential_execution", "fuse_elewise_add_act_ops", "fuse_bn_act_ops", "fuse_relu_depthwise_conv",
        "fuse_broadcast_ops", "fuse_all_optimizer_ops", "enable_inplace", "enable_backward_optimizer_op_deps",
        "cache_runtime_context",
    ),
    Place.EXECUTION_STRATEGY: (
        "num_threads", "num_iteration_per_drop_scope", "num_iteration_per_run", "use_thread_barrier",
    ),
    Place.ENVIRONMENT: (
        "FLAGS_fraction_of_gpu_memory_to_use", "NCCL_SOCKET_IFNAME", "NCCL_P2P_DISABLE", "NCCL_IB_DISABLE",
        "NCCL_IB_CUDA_SUPPORT", "NCCL_DEBUG",
    ),
    Place.PSERVER: ("sync_mode", "split_method", "slice_var_up"),
}  # fmt: skip
"""Every field that the Fleet documents name, by the place where Fleet keeps it."""
DEFAULTS = {
    "auto": False, "sync_nccl_allreduce": True, "nccl_comm_num": 1, "use_hierarchical_allreduce": False,
    "hierarchical_allreduce_inter_nranks": 1, "sync_batch_norm": False, "fuse_all_reduce_ops": True,
    "fuse_grad_size_in_MB": 32, "fuse_grad_size_in_TFLOPS": 20, "cudnn_exhaustive_search": True,
    "conv_workspace_size_limit": 4000, "cudnn_batchnorm_spatial_persistent": True, "localsgd": False,
    "localsgd_k_steps": 1, "adaptive_localsgd": False, "gradient_merge": False, "amp": False,
    "enable_sequential_execution": False, "enable_inplace": False, "enable_backward_optimizer_op_deps": True,
    "num_threads": 1, "num_iteration_per_drop_scope": 10, "num_iteration_per_run": 3, "use_thread_barrier": False,
    "sync_mode": True, "split_method": "RoundRobin", "slice_var_up": True,
}  # fmt: skip
every_knob = pytest.mark.parametrize("knob", CATALOGUE.values(), ids=list(CATALOGUE))


@pytest.mark.parametrize(
    ("place", "name"), [(place, name) for place, names in DOCUMENTED.items() for name in names]
)
def test_every_documented_knob_is_declared_in_its_place(place: Place, name: str) -> None:
    assert CATALOGUE[name].place is place


@pytest.mark.parametrize(("name", "default"), DEFAULTS.items())
def test_defaults_are_the_documented_ones(name: str, default: object) -> None:
    assert CATALOGUE[name].default == default


@every_knob
def test_a_knob_accepts_its_own_default_and_bounds(knob: Knob) -> None:
    for value in (knob.default, knob.low, knob.high, *knob.choices):
        if value is not None:
            assert knob.parse(value) == value
            assert type(knob.parse(value)) is knob.kind


@every_knob
def test_a_knob_says_what_it_is_in_sentences(knob: Knob) -> None:
    for sentence in (knob.meaning, knob.realised):
        assert sentence.endswith((".", ")."))
        assert "\n" not in sentence


@every_knob
def test_a_numeric_knob_has_a_range_and_a_logarithm_where_it_says_so(knob: Knob) -> None:
    numeric = knob.kind in {int, float}
    assert (knob.low is not None and knob.high is not None) is numeric
    if numeric:
        assert knob.low < knob.high
        assert knob.scale is Scale.LINEAR or knob.low > 0


@every_knob
def test_a_knob_that_is_varied_can_be_switched_in_trials(knob: Knob) -> None:
    if knob.place is Place.ENVIRONMENT and knob.name.startswith("NCCL_"):
        # A communicator can be made with these by itself; where it cannot, the variable is read at a launch.
        is_of_one = knob.name in {"NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_CGA_CLUSTER_SIZE"}
        assert knob.switch is (Switch.HOT if is_of_one else Switch.COLD)
        assert knob.launch_variable == (None if knob.carried else knob.name)
    if knob.paddle_field is not None:
        # Paddle's use_dynamic_loss_scaling is our amp_dynamic_loss_scaling: its block is part of a knob's name.
        assert knob.paddle_field.split(".")[-1].removeprefix("use_") in knob.name.removeprefix("use_")


def test_paddle_3_has_no_execution_strategy() -> None:
    blocks = {
        knob.paddle_field.split(".")[0]
        for knob in CATALOGUE.values()
        if knob.paddle_field and reach_of(knob.name, "3.3.1") is not Reach.ABSENT
    }
    assert "execution_strategy" not in blocks


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("nccl_comm_num", 0, "nccl_comm_num is 0, but must lie in 1 … 4"),
        ("nccl_comm_num", 1.5, "must be a whole number"),
        ("nccl_comm_num", True, "nccl_comm_num is True, but must be a number"),
        ("localsgd_k_steps", 17, "must lie in 1 … 16 steps"),
        ("fuse_grad_size_in_MB", "32", "fuse_grad_size_in_MB is '32', but must be a number"),
        ("fuse_grad_size_in_MB", 2000, "must lie in 0.0625 … 1024.0 MB"),
        ("localsgd", 1, "localsgd is 1, but must be true or false"),
        ("fp16_allreduce_dtype", "fp8", "fp16_allreduce_dtype is 'fp8', but must be one of fp16, bf16"),
        ("NCCL_SOCKET_IFNAME", 3, "must be text"),
        ("bucket_cap_mb_list", "1,4", "must be text of the form"),
    ],
)
def test_a_wrong_value_is_refused_with_the_knob_the_value_and_what_is_allowed(name, value, complaint) -> None:
    with pytest.raises(ValueError, match=complaint.replace(".", r"\.")):
        CATALOGUE[name].parse(value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fuse_grad_size_in_MB", float("nan")),
        ("nccl_comm_num", float("nan")),
        ("nccl_comm_num", float("inf")),
        ("nccl_comm_num", 10**400),
    ],
    ids=["nan", "whole-nan", "infinity", "huge"],
)
def test_a_number_that_is_not_finite_is_refused_like_any_other(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        CATALOGUE[name].parse(value)


def test_a_whole_number_written_as_a_fraction_is_taken() -> None:
    assert CATALOGUE["nccl_comm_num"].parse(2.0) == 2
    assert type(CATALOGUE["fuse_grad_size_in_MB"].parse(32)) is float


@pytest.mark.parametrize(
    ("name", "changes", "idle"),
    [
        ("hierarchical_allreduce_inter_nranks", {}, True),
        ("hierarchical_allreduce_inter_nranks", {"use_hierarchical_allreduce": True}, False),
        ("fuse_grad_size_in_MB", {}, False),
        ("fuse_grad_size_in_MB", {"fuse_all_reduce_ops": False}, True),
        ("last_comm_group_size_MB", {"fuse_all_reduce_ops": False}, True),
        ("localsgd_k_steps", {}, True),
        ("localsgd_k_steps", {"localsgd": True}, False),
        ("nccl_comm_num", {"localsgd": True}, True),
        ("fp16_allreduce_dtype", {}, True),
        ("fp16_allreduce_dtype", {"fp16_allreduce": True}, False),
        ("num_threads", {"localsgd": True}, False),
    ],
)
def test_a_knob_without_its_switch_is_idle(name, changes, idle) -> None:
    sentence = CATALOGUE[name].inactive_because(DistributedStrategy.from_changes(changes).values())
    assert (sentence is not None) is idle
    assert sentence is None or sentence.endswith(".")


NUMBERS = st.integers(-(10**9), 10**9) | st.floats(-1e9, 1e9)


@given(st.sampled_from(sorted(CATALOGUE)), st.one_of(st.booleans(), NUMBERS, st.text()))
def test_parsing_any_value_gives_the_knobs_type_or_a_sentence_with_its_name(name: str, value: object) -> None:
    knob = CATALOGUE[name]
    parsed = complaint = None
    try:
        parsed = knob.parse(value)
    except ValueError as error:
        complaint = str(error)
    if complaint is not None:
        assert complaint.startswith(f"{name} is ")
        return
    assert type(parsed) is knob.kind
    assert knob.parse(parsed) == parsed


def test_effects_are_ordered_from_harmless_to_risky() -> None:
    assert [effect.rank for effect in (Effect.EXACT, Effect.NUMERIC, Effect.CONVERGENCE)] == [0, 1, 2]
