"""A strategy: a value for every knob, and a sentence for every rule that one breaks."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect, Switch
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.in_script import fit_to_script
from advisor.protocol.knobs.knob import Knob
from advisor.protocol.knobs.strategy import (
    COUPLING_RULES,
    DistributedStrategy,
    Layout,
    StrategyError,
    broken_rules,
)
from tests.unit.tuning.measured_job import make_context

FOUR_ON_TWO_NODES = Layout(world_size=4, nodes=2)


def values_of(knob: Knob) -> st.SearchStrategy[Value]:
    if knob.kind is bool:
        return st.booleans()
    if knob.kind is str:
        text = st.from_regex(knob.form, fullmatch=True) if knob.form else st.text(max_size=9)
        return st.sampled_from(knob.choices) if knob.choices else text
    return st.integers(knob.low, knob.high) if knob.kind is int else st.floats(knob.low, knob.high)


CHANGES = st.fixed_dictionaries({}, optional={knob.name: values_of(knob) for knob in CATALOGUE.values()})
STRATEGIES = CHANGES.map(DistributedStrategy.from_changes)


def test_a_strategy_without_changes_has_every_default() -> None:
    assert DistributedStrategy().values() == {name: knob.default for name, knob in CATALOGUE.items()}


def test_the_schema_describes_every_knob() -> None:
    schema = DistributedStrategy.model_json_schema()["properties"]
    assert set(schema) == set(CATALOGUE)
    assert schema["fuse_grad_size_in_MB"]["description"] == CATALOGUE["fuse_grad_size_in_MB"].meaning
    assert schema["fuse_grad_size_in_MB"]["unit"] == "MB"
    assert schema["fuse_grad_size_in_MB"]["maximum"] == 1024.0
    assert schema["fp16_allreduce_dtype"]["enum"] == ["fp16", "bf16"]


def test_all_wrong_values_are_named_at_once() -> None:
    with pytest.raises(StrategyError) as refused:
        DistributedStrategy.from_changes({"nccl_comm_num": 9, "amp": "yes", "bucket": 3, "localsgd": True})
    assert len(refused.value.sentences) == 3
    for name in ("nccl_comm_num", "amp", "bucket"):
        assert any(
            sentence.startswith(name) and sentence.endswith(".") for sentence in refused.value.sentences
        )
    assert "bucket is no knob of a DistributedStrategy" in str(refused.value)


def test_a_strategy_is_frozen_and_strict() -> None:
    with pytest.raises(ValidationError):
        DistributedStrategy().nccl_comm_num = 2
    with pytest.raises(ValidationError):
        DistributedStrategy.model_validate({"bucket": 3})


@pytest.mark.parametrize(
    ("changes", "layout", "words"),
    [
        ({"nccl_comm_num": 2}, None, "nccl_comm_num is 2 while sync_nccl_allreduce is on"),
        ({"use_hierarchical_allreduce": True}, None, "hierarchical_allreduce_inter_nranks is 1 while"),
        (
            {"use_hierarchical_allreduce": True, "hierarchical_allreduce_inter_nranks": 3},
            FOUR_ON_TWO_NODES,
            "is 3, which does not split 4 ranks",
        ),
        (
            {"use_hierarchical_allreduce": True, "hierarchical_allreduce_inter_nranks": 4},
            FOUR_ON_TWO_NODES,
            "is 4, which does not split 4 ranks",
        ),
        ({"last_comm_group_size_MB": 64.0}, None, "is 64, larger than fuse_grad_size_in_MB"),
        ({"fuse_broadcast_ops": True}, None, "works in Reduce mode only"),
        ({"localsgd": True, "dgc": True}, None, "localsgd and dgc are on together"),
        ({"dgc": True, "fp16_allreduce": True}, None, "dgc compresses gradients in a reduction of its own"),
        ({"dgc": True, "amp": True, "amp_dtype": "fp16"}, None, "would be fed back for ever"),
        (
            {"gradient_merge": True, "adaptive_localsgd": True},
            None,
            "adaptive_localsgd and gradient_merge are on together",
        ),
        ({"sync_batch_norm": True, "amp": True}, None, "sync_batch_norm does not work with amp"),
        (
            {
                "use_hierarchical_allreduce": True,
                "hierarchical_allreduce_inter_nranks": 2,
                "hierarchical_allreduce_gloo_between": True,
                "sync_batch_norm": True,
            },
            None,
            "NCCL needs one order on every rank",
        ),
    ],
)
def test_a_broken_rule_gives_its_sentence(changes, layout, words) -> None:
    (sentence,) = broken_rules(DistributedStrategy.from_changes(changes), layout)
    assert words in sentence


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"nccl_comm_num": 2, "sync_nccl_allreduce": False},
        {"use_hierarchical_allreduce": True, "hierarchical_allreduce_inter_nranks": 2},
        {"last_comm_group_size_MB": 64.0, "fuse_all_reduce_ops": False},
        {"localsgd": True, "localsgd_k_steps": 16},
        {"hierarchical_allreduce_inter_nranks": 3},
    ],
)
def test_a_sound_strategy_breaks_nothing(changes) -> None:
    assert broken_rules(DistributedStrategy.from_changes(changes), FOUR_ON_TWO_NODES) == []


def test_all_broken_rules_are_told_at_once() -> None:
    changes = {
        "nccl_comm_num": 4, "use_hierarchical_allreduce": True, "last_comm_group_size_MB": 64.0,
        "fuse_broadcast_ops": True, "localsgd": True, "gradient_merge": True, "dgc": True, "sync_batch_norm": True,
        "amp": True, "NCCL_MIN_CTAS": 8, "NCCL_MAX_CTAS": 4, "hierarchical_allreduce_gloo_between": True,
    }  # fmt: skip
    strategy = DistributedStrategy.from_changes(changes)
    assert len(broken_rules(strategy, FOUR_ON_TWO_NODES)) == len(COUPLING_RULES)


def test_idle_knobs_are_no_changes() -> None:
    base = DistributedStrategy()
    idle = {"hierarchical_allreduce_inter_nranks": 8, "localsgd_k_steps": 4, "fp16_allreduce_dtype": "bf16"}
    assert DistributedStrategy.from_changes(idle).changes_from(base) == {}
    active = {"localsgd": True, "localsgd_k_steps": 4}
    assert DistributedStrategy.from_changes(active).changes_from(base) == active
    hidden = {**active, "fuse_grad_size_in_MB": 64.0, "nccl_comm_num": 2}
    assert DistributedStrategy.from_changes(hidden).changes_from(base) == active


def test_the_rung_is_the_highest_effect() -> None:
    assert CATALOGUE.effect_of({}) is Effect.EXACT
    assert CATALOGUE.effect_of({"nccl_comm_num": 2}) is Effect.EXACT
    assert CATALOGUE.effect_of({"nccl_comm_num": 2, "fp16_allreduce": True}) is Effect.NUMERIC
    assert CATALOGUE.effect_of({"fp16_allreduce": True, "localsgd": True}) is Effect.CONVERGENCE


@pytest.mark.parametrize(
    ("facts", "effect"),
    [
        ({"world_size": 4}, Effect.EXACT),
        ({"world_size": 2, "gradient_dtype": "bfloat16"}, Effect.EXACT),
        ({"world_size": 2, "gradient_dtype": "bfloat16", "exchanges_per_step": 4}, Effect.NUMERIC),
        ({"world_size": 4, "gradient_dtype": "bfloat16"}, Effect.NUMERIC),
        ({"world_size": 4, "ddp": {"own_comm_hook": True}}, Effect.NUMERIC),
    ],
)
def test_another_order_of_sums_is_another_rounding_where_they_are_of_16_bits(facts, effect) -> None:
    seen = make_context(**facts).facts
    fitted = fit_to_script(CATALOGUE, seen.rounds_sums, seen.keeps_buckets)
    for name in (
        "fuse_all_reduce_ops",
        "fuse_grad_size_in_MB",
        "bucket_cap_mb_list",
        "use_hierarchical_allreduce",
        "defer_gradient_sync",
    ):
        assert fitted.effect_of({name: True, "num_threads": 2}) is effect
    assert fitted.effect_of({"nccl_comm_num": 2, "num_threads": 2}) is Effect.EXACT
    assert fitted.effect_of({"fuse_grad_size_in_MB": 4.0, "localsgd": True}) is Effect.CONVERGENCE


def test_the_bucket_that_is_filled_first_is_named_last_where_ddp_keeps_the_order_of_definition() -> None:
    for ddp, name in (({}, "first"), ({"find_unused_parameters": True}, "last")):
        context = make_context(ddp=ddp)
        fitted = fit_to_script(CATALOGUE, context.facts.rounds_sums, context.facts.keeps_buckets)
        knob = fitted["last_comm_group_size_MB"]
        assert knob.title == f"{name} bucket's size"
        assert ("reduced last" if name == "last" else "ready first") in knob.meaning
        assert f"small {name} bucket" in knob.rule(context)[0].because


@given(CHANGES)
def test_the_rung_is_never_below_that_of_a_part(changes) -> None:
    assert all(
        CATALOGUE.effect_of({name: value}).rank <= CATALOGUE.effect_of(changes).rank
        for name, value in changes.items()
    )


@given(CHANGES)
def test_the_cold_part_is_what_needs_new_processes(changes) -> None:
    cold = CATALOGUE.keep_cold(changes)
    assert all(CATALOGUE[name].switch is Switch.COLD for name in cold)
    assert all(CATALOGUE[name].switch is not Switch.COLD for name in changes.keys() - cold.keys())


@given(STRATEGIES)
def test_a_strategy_survives_json(strategy) -> None:
    assert DistributedStrategy.model_validate(json.loads(strategy.model_dump_json())) == strategy


@given(STRATEGIES, STRATEGIES)
def test_changes_against_a_base_rebuild_all_that_is_active(strategy, base) -> None:
    changes = strategy.changes_from(base)
    rebuilt = DistributedStrategy.from_changes(changes, base)
    assert {name: rebuilt.values()[name] for name in changes} == changes
    assert strategy.changes_from(strategy) == {}
    values = strategy.values()
    for name in CATALOGUE.keys() - changes.keys():
        idle = CATALOGUE[name].inactive_because(values)
        assert idle or values[name] == base.values()[name]


@given(STRATEGIES, st.sampled_from([None, FOUR_ON_TWO_NODES, Layout(1, 1), Layout(16, 2)]))
def test_broken_rules_are_distinct_sentences(strategy, layout) -> None:
    sentences = broken_rules(strategy, layout)
    assert len(set(sentences)) == len(sentences)
    assert all(sentence.endswith(".") for sentence in sentences)
    assert set(broken_rules(strategy)) <= set(sentences)
