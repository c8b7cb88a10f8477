"""Which knobs are searched, which values, and the sentence for every other one."""

import pytest

from advisor.protocol.asked.jobs import Job
from advisor.protocol.kinds import Effect, Part
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.knob import Rule
from advisor.protocol.measured.results import BlockResult, Phases
from advisor.protocol.measured.trials import Block, BlockPlan, BlockState
from advisor.protocol.nodes.cluster import DeviceKind
from advisor.tuning.space.composition import list_own_values
from advisor.tuning.space.rules_of_thumb import first_strategies
from advisor.tuning.space.space import Space, build_space
from tests.unit.tuning.search_space import START, make_cluster, make_facts, make_job, make_spec


def probe(exposed: float | None = 0.03) -> list[Block]:
    phases = Phases(forward_s=0.02, backward_s=0.04, exposed_comm_s=exposed, optimizer_s=0.01)
    result = BlockResult(steps=1, step_time_s=(0.1,), samples_per_step=1, wall_s=0.1, phases=phases)
    plan = BlockPlan(block_id="b", trial_number=0)
    return [
        Block(
            id="b", session_id="s", trial_number=0, ordinal=0, race=1, state=BlockState.DONE, plan=plan, result=result,
            issued_at=START,
        )
    ]  # fmt: skip


def space_of(job: Job, exposed: float | None = 0.03) -> Space:
    assert job.facts is not None
    return build_space(job, job.facts, probe(exposed))


def names(space: Space) -> set[str]:
    return {d.knob.name for d in space.dimensions}


def reasons(space: Space) -> dict[str, str]:
    return {d.knob: d.reason for d in space.dropped}


def test_every_knob_is_searched_or_dropped_with_a_sentence() -> None:
    space = space_of(make_job())

    searched = names(space) | {d.knob.name for d in space.costly}
    assert searched | reasons(space).keys() == set(CATALOGUE)
    assert not searched & reasons(space).keys()
    assert all(reason.endswith((".", "!")) for reason in reasons(space).values())


def test_exact_jobs_keep_the_higher_rungs_for_the_ladder() -> None:
    space = space_of(make_job())

    assert "fp16_allreduce" in {d.knob.name for d in space.higher}
    assert "exact knobs only" in reasons(space)["fp16_allreduce"]


def test_buckets_of_a_script_that_sums_in_sixteen_bits_are_no_exact_knobs() -> None:
    facts = make_facts(gradient_dtype="float16")
    space = space_of(make_job(facts=facts))

    assert "fuse_grad_size_in_MB" in {d.knob.name for d in space.higher}
    assert "added up, in 16 bits or by the script's own hook" in reasons(space)["fuse_grad_size_in_MB"]
    assert "nccl_comm_num" in names(space)


def test_an_allowed_rung_is_searched() -> None:
    space = space_of(make_job(make_spec(allow=Effect.CONVERGENCE)))

    assert {"fp16_allreduce", "localsgd", "localsgd_k_steps"} <= names(space)
    assert not space.higher


def test_frozen_knobs_stay() -> None:
    space = space_of(make_job(make_spec(freeze=("num_threads", "localsgd"))))

    assert "Frozen" in reasons(space)["num_threads"]
    assert "localsgd" in reasons(space)["localsgd_k_steps"]


def test_only_named_knobs_are_searched() -> None:
    space = space_of(make_job(make_spec(knobs=("num_threads",))))

    assert names(space) == {"num_threads"}
    assert "asks for" in reasons(space)["fuse_grad_size_in_MB"]


def test_refused_knobs_carry_the_runtimes_sentence() -> None:
    space = space_of(make_job(refusals={"nccl_comm_num": "The script registers its own hook."}))

    assert reasons(space)["nccl_comm_num"] == "The script registers its own hook."


@pytest.mark.parametrize(("exposed", "gated"), [(0.0007, True), (0.03, False), (None, False)])
def test_communication_knobs_are_dropped_when_communication_is_hidden(
    exposed: float | None, gated: bool
) -> None:
    space = space_of(make_job(), exposed)

    assert ("fuse_grad_size_in_MB" not in names(space)) == gated
    assert "num_threads" in names(space)


def test_a_named_knob_is_searched_even_where_it_hardly_matters() -> None:
    space = space_of(make_job(make_spec(knobs=("fuse_grad_size_in_MB",))), exposed=0.0007)

    assert names(space) == {"fuse_grad_size_in_MB"}


def test_sizes_reach_from_small_to_all_gradients_and_hold_baseline_and_rules() -> None:
    space = space_of(make_job())

    sizes = next(d.values for d in space.dimensions if d.knob.name == "fuse_grad_size_in_MB")
    assert {25.0, 4.0, 13.0, 41.0} <= set(sizes)
    assert max(sizes) == 41.0
    assert sizes == tuple(sorted(sizes))


def test_inner_groups_divide_the_world() -> None:
    job = make_job(facts=make_facts(world_size=12, local_world_size=4, nodes=3))

    inner = next(d for d in space_of(job).dimensions if d.knob.name == "hierarchical_allreduce_inter_nranks")

    assert inner.values == (2, 3, 4, 6)


def test_nccls_launch_settings_are_cold_knobs() -> None:
    job = make_job(facts=make_facts(backend="nccl", device=DeviceKind.CUDA))

    assert {d.knob.name for d in space_of(job).costly} == {
        "NCCL_SOCKET_NTHREADS",
        "NCCL_NSOCKS_PERTHREAD",
        "NCCL_BUFFSIZE",
        "NCCL_CTA_POLICY",
        "nccl_tuner_allreduce",
        "nccl_tuner_channels",
        "PYTORCH_CUDA_ALLOC_CONF",
    }


def test_a_sharded_models_collectives_are_gathers_and_scatters() -> None:
    facts = make_facts(backend="nccl", device=DeviceKind.CUDA, sharding="fully_shard")
    names = {d.knob.name for d in space_of(make_job(facts=facts)).costly}

    assert {"nccl_tuner_all_gather", "nccl_tuner_reduce_scatter"} <= names
    assert "nccl_tuner_allreduce" not in names


def test_what_a_communicator_is_made_with_is_searched_like_any_hot_knob() -> None:
    job = make_job(facts=make_facts(backend="nccl", device=DeviceKind.CUDA))
    searched = {d.knob.name: d.values for d in space_of(job).dimensions}

    assert {"NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_CGA_CLUSTER_SIZE"} <= searched.keys()
    assert searched["NCCL_CGA_CLUSTER_SIZE"] == (0, 2, 4, 8)
    assert not {name for d in space_of(make_job()).dimensions if (name := d.knob.name).startswith("NCCL_")}


def test_allreduces_in_order_are_no_trial_on_nccl_which_keeps_them_in_order() -> None:
    nccl = make_facts(backend="nccl", device=DeviceKind.CUDA)
    space = space_of(make_job(facts=nccl))

    assert "one after another by itself" in reasons(space)["sync_nccl_allreduce"]
    assert "nccl_comm_num" in names(space)
    # A strategy that a job starts from may hold several back: to let them overlap is worth a trial.
    held_back = {"nccl_comm_num": 2, "sync_nccl_allreduce": True}
    assert "sync_nccl_allreduce" in names(space_of(make_job(facts=nccl, baseline=held_back)))
    # gloo works on two allreduces at once.
    assert "sync_nccl_allreduce" in names(space_of(make_job()))


def test_layers_per_bucket_halve_from_all_of_them() -> None:
    space = space_of(make_job(baseline={"fuse_grad_size_in_TFLOPS": 54.0}))

    layers = next(d for d in space.dimensions if d.knob.name == "fuse_grad_size_in_TFLOPS")
    assert layers.values == (2.0, 4.0, 7.0, 14.0, 20.0, 27.0, 50.0, 54.0)
    assert [rule.value for rule in layers.knob.rule(space.context)] == [20.0]


@pytest.mark.parametrize(
    ("has_batch_norm", "searched", "dropped"),
    [
        (True, "fuse_bn_act_ops", "fuse_elewise_add_act_ops"),
        (False, "fuse_elewise_add_act_ops", "fuse_bn_act_ops"),
    ],
)
def test_one_compilation_is_searched_under_one_name(
    has_batch_norm: bool, searched: str, dropped: str
) -> None:
    job = make_job(make_spec(allow="numeric"), facts=make_facts(has_batch_norm=has_batch_norm))

    space = space_of(job)

    assert searched in [d.knob.name for d in space.costly], "a compilation is not for the sampler to toggle"
    assert searched in next(d.reason for d in space.dropped if d.knob == dropped)
    changes = space.composer.compose({searched: True, "fuse_grad_size_in_TFLOPS": 5.0})
    assert changes == {searched: True}, "a compiled model's gradients come graph by graph"


def test_values_outside_a_knobs_range_are_clipped() -> None:
    job = make_job(baseline={"fuse_grad_size_in_MB": 2000.0, "num_threads": "many", "unheard_of": 1})

    values = list_own_values(job)

    assert values["fuse_grad_size_in_MB"] == 1024.0
    assert values["num_threads"] == 1


def test_every_job_trains_collectively() -> None:
    """The documents' default of a_sync is for parameter servers; no job's strategy.json says so."""
    assert list_own_values(make_job(baseline={}))["a_sync"] is False


def test_the_nearest_value_stands_for_one_off_the_grid() -> None:
    sizes = next(d for d in space_of(make_job()).dimensions if d.knob.name == "fuse_grad_size_in_MB")

    assert sizes.values[sizes.index_of(3.9)] == 4.0
    assert sizes.values[sizes.index_of(4000.0)] == 41.0


@pytest.mark.parametrize(
    ("switch", "interval", "steps"),
    [
        ("localsgd", "localsgd_k_steps", 4),
        ("adaptive_localsgd", "adaptive_localsgd_init_k_steps", 4),
        ("gradient_merge", "gradient_merge_k_steps", 2),
    ],
)
def test_a_switch_over_several_steps_gets_an_interval_that_switches_something(
    switch, interval, steps
) -> None:
    composer = space_of(make_job(make_spec(allow=Effect.CONVERGENCE))).composer
    assert composer.compose({switch: True}) == {switch: True, interval: steps}
    assert composer.compose({switch: True, interval: 8}) == {switch: True, interval: 8}


def test_what_compression_replaces_is_left_out_beside_it() -> None:
    composer = space_of(make_job(make_spec(allow=Effect.CONVERGENCE))).composer
    assert composer.compose({"dgc": True, "fp16_allreduce": True, "nccl_comm_num": 2}) == {"dgc": True}
    assert composer.compose({"dgc": True, "gradient_merge": True}) is None


def test_only_the_values_that_a_job_names_are_tried_and_the_baselines() -> None:
    spec = make_spec(values={"fuse_grad_size_in_MB": (1, 8), "num_threads": (2,)})
    space = space_of(make_job(spec))

    values = {d.knob.name: d.values for d in space.dimensions}
    assert values["fuse_grad_size_in_MB"] == (1.0, 8.0, 25.0)
    assert values["num_threads"] == (1, 2)
    assert values["nccl_comm_num"] == (1, 2, 3, 4)
    assert space.composer.compose({"fuse_grad_size_in_MB": 4.0}) is None
    assert space.composer.compose({"fuse_grad_size_in_MB": 8.0}) is not None


def test_named_values_of_a_knob_that_waits_for_its_switch_have_no_baseline() -> None:
    spec = make_spec(allow=Effect.CONVERGENCE, values={"localsgd_k_steps": (8,)})
    space = space_of(make_job(spec))

    assert {d.knob.name: d.values for d in space.dimensions}["localsgd_k_steps"] == (8,)
    assert space.composer.compose({"localsgd": True, "localsgd_k_steps": 8}) is not None


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"values": {"fuse_grad_size": (1,)}}, "fuse_grad_size: no such knob"),
        ({"values": {"num_threads": ()}}, "values of num_threads is empty"),
        ({"values": {"num_threads": (2, 1000)}}, "num_threads is 1000, but must lie in 1"),
        ({"values": {"num_threads": (2,)}, "freeze": ("num_threads",)}, "name a knob in one"),
    ],
)
def test_values_that_make_no_sense_are_refused(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make_spec(**fields)


def test_parts_of_a_step_are_shares_of_the_probe() -> None:
    space = space_of(make_job())

    assert space.shares[Part.COMMUNICATION] == pytest.approx(0.3)
    assert space.shares[Part.COMPUTATION] == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("cpus", "ranks", "own", "values"),
    [(8, 2, 1, (1, 2, 4)), (8, 8, 1, (1,)), (2, 2, 2, (1, 2)), (6, 2, 1, (1, 2, 3)), (4, 8, 3, (1, 3))],
)
def test_threads_reach_to_a_ranks_share_of_its_nodes_cores(
    cpus: int, ranks: int, own: int, values: tuple[int, ...]
) -> None:
    facts = make_facts(local_world_size=ranks, world_size=2 * ranks)
    job = make_job(facts=facts, cluster=make_cluster(cpus), baseline={"num_threads": own})
    threads = next((d.values for d in space_of(job).dimensions if d.knob.name == "num_threads"), (own,))

    assert threads == values


def test_sizes_that_hold_all_gradients_are_one_value() -> None:
    job = make_job(make_spec(values={"fuse_grad_size_in_MB": (1, 41, 64, 100)}))
    named = {d.knob.name: d.values for d in space_of(job).dimensions}
    assert named["fuse_grad_size_in_MB"] == (1.0, 25.0, 41.0)

    large = {"fuse_grad_size_in_MB": 64.0, "last_comm_group_size_MB": 1.0}
    composer = space_of(make_job(baseline=large)).composer
    assert composer.compose({"fuse_grad_size_in_MB": 41.0}) is None, "the baseline's stands for all"


def test_a_model_smaller_than_every_bucket_has_no_bucket_size() -> None:
    space = space_of(make_job(facts=make_facts(gradient_bytes=20_000)))

    assert not {"fuse_grad_size_in_MB", "last_comm_group_size_MB"} & names(space)
    assert reasons(space)["fuse_grad_size_in_MB"] == "Every size puts all 20 kB of gradients into one bucket."
    assert "fuse_all_reduce_ops" in names(space)


def test_a_model_of_one_layer_has_no_layers_to_group() -> None:
    assert "one layer" in reasons(space_of(make_job(facts=make_facts(layers=1))))["fuse_grad_size_in_TFLOPS"]


# --- what is computed from measurements ------------------------------------------------------------------


def with_plan(job: Job, rule: Rule | str) -> Space:
    assert job.facts is not None
    return build_space(job, job.facts, probe(), {"bucket_cap_mb_list": rule})


def test_a_computed_plan_is_tried_beside_single_sizes_with_its_reason() -> None:
    planned = Rule("1+4+12.5", "Planned.")
    space = with_plan(make_job(), planned)

    values = {d.knob.name: d.values for d in space.dimensions}
    assert values["bucket_cap_mb_list"] == ("", "1+4+12.5")
    alone = {p.changes["bucket_cap_mb_list"]: p.because for p in first_strategies(space) if len(p.changes) == 1
             and "bucket_cap_mb_list" in p.changes}  # fmt: skip
    assert alone == {"1+4+12.5": "Planned."}
    sizes = {"fuse_grad_size_in_MB", "last_comm_group_size_MB", "fuse_grad_size_in_TFLOPS"}
    together = space.composer.compose({"bucket_cap_mb_list": "1+4+12.5", "fuse_grad_size_in_MB": 4.0})
    assert together == {"bucket_cap_mb_list": "1+4+12.5"}, "one size for all says nothing beside it"
    assert all(
        not sizes & set(p.changes) or "bucket_cap_mb_list" not in p.changes for p in first_strategies(space)
    )


def test_a_plan_that_brings_nothing_is_dropped_with_its_figures_unless_the_job_names_one() -> None:
    space = with_plan(make_job(), "Exposed in a step: 3 ms as it is.")
    assert reasons(space)["bucket_cap_mb_list"] == "Exposed in a step: 3 ms as it is."

    named = make_spec(values={"bucket_cap_mb_list": ("2+8",)})
    space = with_plan(make_job(named), "Nothing to gain.")
    assert {d.knob.name: d.values for d in space.dimensions}["bucket_cap_mb_list"] == ("2+8", "")
