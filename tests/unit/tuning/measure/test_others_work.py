"""What others took of a machine while a training was measured on it."""

from advisor.protocol.measured.telemetry import NodeTelemetry, Spread
from advisor.tuning.measure.utilisation import say_taken


def took(agent: str, cpu: float, own: float) -> NodeTelemetry:
    def spread(value: float) -> Spread:
        return Spread(mean=value, median=value, max=value)

    return NodeTelemetry(
        agent=agent,
        samples=3,
        cpu=spread(cpu),
        session_cpu=spread(own),
        memory_bytes=0,
        network_bytes_per_s=0.0,
    )


def test_the_node_of_which_others_took_most_is_told() -> None:
    blocks = [(took("a", 0.9, 0.8), took("b", 1.0, 0.3)), (took("a", 0.9, 0.8), took("b", 1.0, 0.5))]
    assert say_taken(blocks) == "While it was measured, other processes took 60% of the machine's processors."
    assert say_taken([nodes[:1] for nodes in blocks]) == say_taken([]) == ""
