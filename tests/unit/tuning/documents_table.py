"""The documents' local-SGD table, and what the cost model makes of it: ResNet-50 on 4 × 8 V100, 128 images a rank."""

from collections.abc import Iterable
from dataclasses import replace

from advisor.protocol.measured.results import Phases
from advisor.protocol.nodes.cluster import Cluster, DeviceKind
from advisor.tuning.model.cost_model import TimedStrategy, calibrate
from tests.unit.tuning.measured_job import make_block, make_context, with_changes

IMAGES_PER_S = {1: 8270.91, 2: 8715.67, 4: 8762.66, 8: 9184.62, 16: 9431.46}
"""Throughput by the interval of local SGD."""
ADAPTIVE_IMAGES_PER_S = 8945.74
STEP_S = {k: 32 * 128 / rate for k, rate in IMAGES_PER_S.items()}
PHASES = Phases(forward_s=0.15, backward_s=0.29, exposed_comm_s=0.045, optimizer_s=0.01)
"""Of the step at k = 1; the documents do not tell them: a V100's usual ones."""


def predict_step_s(known: Iterable[int]) -> dict[int, float]:
    """Return the predicted step for every k, once the steps of the rows `known` were measured beside that of k = 1."""
    context = make_context(
        backend="nccl", device=DeviceKind.CUDA, world_size=32, local_world_size=8, nodes=4,
        gradient_bytes=102_228_128, parameter_tensors=161, layers=107, largest_parameter_bytes=9_437_184,
    )  # fmt: skip
    nodes = tuple(node.model_copy(update={"testbed": None}) for node in context.cluster.nodes)
    context = replace(context, cluster=Cluster(nodes=nodes))
    values = {
        k: context.baseline if k == 1 else with_changes(context, localsgd=True, localsgd_k_steps=k)
        for k in STEP_S
    }
    observations = [TimedStrategy(values[k], STEP_S[k], 0.005) for k in known]
    model = calibrate(context, [make_block(STEP_S[1], PHASES)], observations)
    assert model is not None
    return {k: model.predict_step_s(values[k]) for k in STEP_S}


def find_errors(known: Iterable[int]) -> dict[int, float]:
    """Return by how much each predicted throughput is off, as a fraction of the documents' one."""
    return {k: STEP_S[k] / step_s - 1 for k, step_s in predict_step_s(known).items()}
