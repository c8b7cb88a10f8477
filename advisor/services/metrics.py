"""What is counted while the server runs, and what is asked of the database when Prometheus reads.

Labels have few values, all of them ours: no names of jobs, agents or people, no addresses, no secrets.
"""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from advisor.errors import Unavailable
from advisor.storage.whole.census import Census

FRESH_S = 5.0
"""What was asked of the database is told again for this long: many who look cost no more than one."""
_REQUEST_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_DATABASE_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0)
_PLAN_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 30.0, 120.0)


class _Found(dict[tuple[str, ...], Any]):
    """A metric's children by their labels: the library looks for one under a lock, for several microseconds."""

    def __init__(self, metric: Any) -> None:
        super().__init__()
        self._metric = metric

    def __missing__(self, labels: tuple[str, ...]) -> Any:
        child = self[labels] = self._metric.labels(*labels)
        return child


class Metrics:
    """One server's figures; made with it, and gone with it."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        """`now_s`: seconds on a monotonic clock."""
        self._now_s = now_s
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        within: dict[str, Any] = {"registry": self._registry, "namespace": "fleet_advisor"}
        self._requests = _Found(
            Histogram(
                "request_seconds",
                "Time to answer a request; polls and streams are held open on purpose.",
                ("method", "route", "status"),
                buckets=_REQUEST_S,
                **within,
            )
        )
        self._in_progress = _Found(
            Gauge(
                "requests_in_progress",
                "Requests of the API being answered now; those of …/poll are agents that wait for work.",
                ("method", "route"),
                **within,
            )
        )
        self._reports = _Found(
            Counter("reports", "Races that agents reported, by what became of them.", ("outcome",), **within)
        )
        self._transactions = _Found(
            Histogram(
                "database_transaction_seconds",
                "Time of a transaction, waiting for its turn included.",
                ("kind",),
                buckets=_DATABASE_S,
                **within,
            )
        )
        self._outages = Counter(
            "database_outages", "Transactions that failed because the database could not serve.", **within
        )
        self._plans = Histogram(
            "planner_seconds", "Time of a suggestion.", ("kind",), buckets=_PLAN_S, **within
        )
        self._planner_s = now_s()
        self._keepers_s: dict[str, float] = {}
        self._keeper_age = Gauge(
            "keeper_age_seconds",
            "Since a keeper last finished a round; since the start where it never has.",
            ("keeper",),
            **within,
        )
        planner_age = Gauge(
            "planner_age_seconds",
            "Since the planner last finished; since the start where it never has.",
            **within,
        )
        planner_age.set_function(lambda: now_s() - self._planner_s)
        for outcome in ("accepted", "quarantined"):
            self._reports[(outcome,)].inc(0)  # so that it is told from the start

    def write(self) -> bytes:
        """Return all figures in Prometheus' text format."""
        return generate_latest(self._registry)

    def ask_database(self, look: Callable[[], Census]) -> None:
        """Tell what `look` returns too. It raises Unavailable when the database does not answer."""
        self._registry.register(_CensusTaker(look, self._now_s))

    def begin_request(self, method: str, route: str) -> None:
        """Note that a request of the API is being answered."""
        self._in_progress[method, route].inc()

    def end_request(self, method: str, route: str) -> None:
        """Note that it is not any more."""
        self._in_progress[method, route].dec()

    def note_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Note how a request went; `status` is 0 where its client left before there was an answer."""
        shown = f"{status // 100}xx" if status else "none"
        self._requests[method, route, shown].observe(seconds)

    def note_report(self, *, is_accepted: bool) -> None:
        """Note what became of a race that an agent reported."""
        self._reports[("accepted" if is_accepted else "quarantined",)].inc()

    def note_transaction(self, kind: str, seconds: float, is_outage: bool) -> None:
        """Note a transaction, `read` or `write`."""
        self._transactions[(kind,)].observe(seconds)
        if is_outage:
            self._outages.inc()

    def watch_keeper(self, name: str) -> Callable[[], None]:
        """Tell from now on how long ago a keeper finished a round; return what it calls then."""

        def note() -> None:
            self._keepers_s[name] = self._now_s()

        note()
        self._keeper_age.labels(name).set_function(lambda: self._now_s() - self._keepers_s[name])
        return note

    def note_plan(self, seconds: float, *, quick: bool) -> None:
        """Note that the planner made a suggestion, perhaps the quick one that stands for a late one."""
        self._planner_s = self._now_s()
        self._plans.labels("quick" if quick else "full").observe(seconds)


class _CensusTaker(Collector):
    """Asks the database when the figures are read, at most once in a while."""

    def __init__(self, look: Callable[[], Census], now_s: Callable[[], float]) -> None:
        self._look, self._now_s = look, now_s
        self._known: list[Metric] = []
        self._known_s: float | None = None
        self._one_at_a_time = threading.Lock()

    def collect(self) -> Iterator[Metric]:
        with self._one_at_a_time:
            if self._known_s is None or self._now_s() - self._known_s >= FRESH_S:
                self._known = list(self._ask())
                self._known_s = self._now_s()
            yield from self._known

    def _ask(self) -> Iterator[Metric]:
        try:
            census = self._look()
        except Unavailable:
            yield _gauge("database_up", "Whether the database answers.", 0)
            return
        yield _gauge("database_up", "Whether the database answers.", 1)
        for name, what, counts in (
            ("jobs", "Jobs by state.", census.jobs),
            ("agents", "Agents by state.", census.agents),
            ("live_sessions", "Sessions that are not over, by state.", census.sessions),
            ("live_members", "Agents that hold a session, by what their part of it does.", census.members),
        ):
            family = GaugeMetricFamily(f"fleet_advisor_{name}", what, labels=["state"])
            for state, count in counts.items():
                family.add_metric([state], count)
            yield family


def _gauge(name: str, what: str, value: float) -> Metric:
    return GaugeMetricFamily(f"fleet_advisor_{name}", what, value=value)
