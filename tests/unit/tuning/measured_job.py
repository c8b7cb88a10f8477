"""A job as a probe measured it, for tests of the cost model: facts, blocks and drawn strategies."""

import random
from collections.abc import Mapping
from datetime import UTC, datetime

import numpy as np

from advisor.protocol.base import Value
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.knob import KnobContext
from advisor.protocol.knobs.strategy import DistributedStrategy
from advisor.protocol.measured.results import BlockResult, Phases
from advisor.protocol.measured.trials import Block, BlockPlan, BlockState
from advisor.protocol.nodes.cluster import Cluster, Node
from advisor.protocol.nodes.testbed import Testbed
from advisor.protocol.training.workload import WorkloadFacts
from advisor.tuning.measure.statistics import summarise_block
from advisor.tuning.model.cost_model import CostModel, TimedStrategy, calibrate

MIB = 2**20
Values = Mapping[str, Value]


def make_context(rate: str = "1gbit", **fields: object) -> KnobContext:
    facts = WorkloadFacts.model_validate(
        {
            "backend": "gloo", "device": "cpu", "world_size": 2, "local_world_size": 1, "nodes": 2,
            "gradient_bytes": 40 * MIB, "parameter_tensors": 60, "layers": 30, "batch_size_per_rank": 16,
            "largest_parameter_bytes": 8 * MIB, **fields,
        }
    )  # fmt: skip
    testbed = Testbed(nodes=max(2, facts.nodes), rate=rate)
    nodes = tuple(
        Node(hostname=f"n{i}", cpu_count=4, memory_bytes=2**33, testbed=testbed) for i in range(facts.nodes)
    )
    baseline = DistributedStrategy.from_changes(
        {"fuse_grad_size_in_MB": 25.0, "sync_nccl_allreduce": False, "fuse_grad_size_in_TFLOPS": 30.0}
    )
    return KnobContext(
        facts=facts, cluster=Cluster(nodes=nodes), baseline=baseline.values(), catalogue=CATALOGUE
    )


def make_block(step_s: float, phases: Phases, overrides: Values | None = None, **fields: object) -> Block:
    result = BlockResult(
        steps=30, step_time_s=(step_s,) * 30, samples_per_step=32, wall_s=30 * step_s, phases=phases, **fields
    )
    plan = BlockPlan(block_id="b", trial_number=0, overrides=dict(overrides or {}))
    return Block(
        id="b", session_id="s", trial_number=0, ordinal=0, race=1, state=BlockState.DONE, plan=plan, result=result,
        summary=summarise_block(result), issued_at=datetime(2026, 1, 1, tzinfo=UTC),
    )  # fmt: skip


PHASES = Phases(forward_s=0.05, backward_s=0.12, exposed_comm_s=0.29, optimizer_s=0.02, own_code_s=0.02)


def make_model(context: KnobContext | None = None, *observations: TimedStrategy) -> CostModel:
    model = calibrate(context or make_context(), [make_block(0.5, PHASES)], observations)
    assert model is not None
    return model


def with_changes(context: KnobContext, **changes: Value) -> dict[str, Value]:
    return {**context.baseline, **changes}


def draw_strategies(context: KnobContext, count: int, seed: int) -> list[dict[str, Value]]:
    dice = random.Random(seed)
    drawn: list[dict[str, Value]] = []
    while len(drawn) < count:
        size = dice.choice((0.5, 1.0, 2.0, 5.0, 10.0, 25.0, 41.0))
        changes: dict[str, Value] = {
            "fuse_grad_size_in_MB": size,
            "last_comm_group_size_MB": min(1.0, size),
            "nccl_comm_num": dice.choice((1, 2, 4)),
            "fp16_allreduce": dice.choice((False, True)),
            "num_threads": dice.choice((1, 2, 4)),
            "fuse_all_reduce_ops": dice.random() < 0.9,
        }
        if dice.random() < 0.3:
            changes |= {"localsgd": True, "localsgd_k_steps": dice.choice((2, 4, 8))}
        drawn.append(with_changes(context, **changes))
    return drawn


def rank_correlation(first: list[float], second: list[float]) -> float:
    places = [np.argsort(np.argsort(series)) for series in (first, second)]
    return float(np.corrcoef(*places)[0, 1])
