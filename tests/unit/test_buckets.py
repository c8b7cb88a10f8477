"""A token may send a burst, then only so many requests a second; other tokens never notice."""

import pytest

from advisor.api.edge.limits import Buckets
from advisor.errors import TooManyRequests


class Clock:
    """Seconds that a test lets pass."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def send(buckets: Buckets, token: str, most: int) -> int:
    """How many of so many requests are answered."""
    answered = 0
    for _ in range(most):
        try:
            buckets.take(token)
        except TooManyRequests:
            continue
        answered += 1
    return answered


def test_burst_is_let_through_and_then_so_many_a_second() -> None:
    clock = Clock()
    buckets = Buckets(per_s=10.0, at_once=50, elapsed=clock)
    assert send(buckets, "greedy", 100) == 50
    for _ in range(20):
        clock.now_s += 1.0
        assert send(buckets, "greedy", 100) == 10
    assert send(buckets, "quiet", 50) == 50
    clock.now_s += 1000.0
    assert send(buckets, "greedy", 100) == 50, "and no more than one burst is saved up"


def test_an_agents_usual_traffic_never_meets_the_limit() -> None:
    clock = Clock()
    buckets = Buckets(per_s=100.0, at_once=1000, elapsed=clock)
    for _ in range(1000):
        clock.now_s += 0.1
        # A beat while the gang assembles, a report, a question, and telemetry, ten times a second each.
        assert send(buckets, "agent", 5) == 5


@pytest.mark.parametrize(("per_s", "wait"), [(100.0, "1"), (0.1, "10"), (0.001, "1000")])
def test_who_is_refused_is_told_when_it_will_be_let_in(per_s: float, wait: str) -> None:
    clock = Clock()
    buckets = Buckets(per_s, at_once=1, elapsed=clock)
    buckets.take("one")
    with pytest.raises(TooManyRequests) as refused:
        buckets.take("one")
    assert refused.value.headers == {"Retry-After": wait}
    clock.now_s += float(wait)
    buckets.take("one")


def test_quiet_tokens_are_forgotten_and_busy_ones_are_not() -> None:
    clock = Clock()
    buckets = Buckets(per_s=1.0, at_once=2, elapsed=clock)
    for number in range(5000):
        clock.now_s += 1.0
        buckets.take(f"token {number}")
    assert len(buckets._buckets) < 4200  # memory is what is tested
    send(buckets, "busy", 2)
    for number in range(5000):
        buckets.take(f"other {number}")
    assert send(buckets, "busy", 1) == 0
