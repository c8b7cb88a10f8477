"""The lever of data reading: the training loader's workers, prefetching and pinned memory, exchanged in mid-epoch.

And its batch size, as a multiple of the script's: index batches are joined before they are read, so that the script's
own collation makes the batch.
"""

from __future__ import annotations

import threading
from typing import Any, Dict, List, Mapping

import torch

from ...loading.loader_source import explain_no_exchange, explain_no_grouping
from ...loading.reading import Reading
from ..lever import Evidence, Lever, Training, read_count, read_switch

WORKERS = "loader_num_workers"
PREFETCH = "loader_prefetch_factor"
PIN = "loader_pin_memory"
PERSISTENT = "loader_persistent_workers"
MULTIPLE = "batch_size_multiple"
FIELDS = {
    WORKERS: "num_workers",
    PREFETCH: "prefetch_factor",
    PIN: "pin_memory",
    PERSISTENT: "persistent_workers",
}
"""DataLoader's own name of each knob."""
LEAST_SEGMENT = 60
"""Steps between two exchanges of workers: starting them takes as long as many steps."""
OWN_SETTINGS = "A loader that training reads now has {found} instead."
NO_LOADER = "The script keeps a persistent iterator without its DataLoader, from which others could be made."


class DataReading(Lever):
    """Every training loader gets the same changes; samples, their order and the script's random numbers stay."""

    knobs = (*FIELDS, MULTIPLE)
    changes_training = (MULTIPLE,)
    serves_plain = True
    serves_sharded = True
    serves_engines = True

    def __init__(self, reading: Reading, device: torch.device) -> None:
        self._reading = reading
        self._device = device
        self._values: Dict[str, Any] = {}
        self._rejected: Dict[str, str] = {}

    def list_refusals(self, training: Training) -> Dict[str, str]:
        live = self._reading.list_live()
        if not live:
            sentence = "The script reads no batches through a torch DataLoader while it trains."
            return dict.fromkeys(self.knobs, self._reading.unknown or sentence)
        refusals: Dict[str, str] = {}
        if self._device.type != "cuda":
            refusals[PIN] = "Pinned memory speeds up copies to a GPU; this job trains on CPU."
        for _, feed in live:
            why = NO_LOADER if feed.loader is None else explain_no_exchange(feed.loader)
            if why is None and feed.thread != threading.get_ident():
                why = "The script reads its batches in a thread of its own, where they cannot be exchanged."
            if why is None and (changed := feed.find_change()):
                why = (
                    f"The script's {changed} changes while batches are read: a worker that reads ahead would find "
                    "it as it was before."
                )
            if why is not None:
                refusals.update(dict.fromkeys(self.knobs, why))
            elif (alone := explain_no_grouping(feed.loader)) is not None:
                refusals[MULTIPLE] = alone
        return refusals

    def observe(self, training: Training) -> Dict[str, Any]:
        live = self._reading.list_live()
        if not live:
            return {}
        own = live[-1][1].own
        return {MULTIPLE: 1, **{knob: getattr(own, field) for knob, field in FIELDS.items()}}

    def switch(self, values: Mapping[str, Any], training: Training) -> None:
        self._values, self._rejected = {}, {}
        for knob, value in values.items():
            try:
                self._values[knob] = _read_value(knob, value)
            except ValueError as error:
                self._rejected[knob] = f"{knob} was not set: {error}."
        restarted = self._reading.change(
            {FIELDS[knob]: value for knob, value in self._values.items() if knob in FIELDS}
        )
        self.batches_per_step = int(self._values.get(MULTIPLE, 1))
        self.is_on = self.batches_per_step > 1
        self.least_warm_up = max(restarted, self._reading.regroup(self.batches_per_step))
        self.lead_in = max(1, self.least_warm_up)
        self.least_segment = LEAST_SEGMENT if restarted else 0
        self.starts_slowly = restarted > 0

    def end_segment(self, training: Training) -> None:
        # Losses are compared on the script's own batches.
        self._reading.regroup(1)
        self.is_on = False

    def begin_timing(self) -> None:
        self._reading.begin_timing(look_at_memory=PIN in self._values)

    def list_faults(self) -> Dict[str, str]:
        if not self._values:
            return {}
        if self._reading.take_foreign():
            return dict.fromkeys(self._values, self._reading.unknown or NO_LOADER)
        faults: Dict[str, str] = {}
        for _, feed in self._reading.list_live():
            why = feed.failure or (NO_LOADER if feed.loader is None else explain_no_exchange(feed.loader))
            for knob, value in self._values.items():
                joined = feed.grouped.multiple if feed.grouped is not None else 1
                found = joined if knob == MULTIPLE else getattr(feed.settings, FIELDS[knob])
                if found != value and (knob in (MULTIPLE, WORKERS, PIN) or feed.settings.num_workers):
                    faults[knob] = why or OWN_SETTINGS.format(found=found)
        return faults

    def prove(self) -> Evidence:
        evidence = Evidence(not_consumed=dict(self._rejected))
        if not self._values:
            return evidence
        live = [(own, feed) for own, feed in self._reading.list_live() if feed.delivered]
        if not live:
            sentence = "No batch of a torch DataLoader was read in the timed steps."
            evidence.not_consumed.update(dict.fromkeys(self._values, sentence))
        for own, feed in live:
            late = (
                f"{feed.late} of {feed.delivered} timed batches were read before the switch: warm up longer."
            )
            broken = feed.failure or (late if feed.late else "")
            workers = feed.list_workers(own)
            for knob in self._values:
                if broken:
                    evidence.not_consumed[knob] = broken
                    continue
                if knob == MULTIPLE:
                    self._prove_multiple(feed, evidence)
                    continue
                self._prove_knob(knob, feed.settings, workers, feed.delivered, evidence)
                if getattr(feed.own, FIELDS[knob]) == self._values[knob]:
                    evidence.no_effect[knob] = f"The script's loader has {self._values[knob]} already."
        evidence.consumed = {k: v for k, v in evidence.consumed.items() if k not in evidence.not_consumed}
        evidence.no_effect = {k: v for k, v in evidence.no_effect.items() if k in evidence.consumed}
        return evidence

    def _prove_multiple(self, feed: Any, evidence: Evidence) -> None:
        wanted = self._values[MULTIPLE]
        joined = feed.grouped.multiple if feed.grouped is not None else 1
        size = getattr(feed.loader, "batch_size", None)
        samples = f", {wanted * size} samples instead of {size}" if isinstance(size, int) else ""
        if wanted == 1:
            evidence.no_effect[MULTIPLE] = "The script's own batches are what 1 means."
        if joined == wanted:
            evidence.consumed[MULTIPLE] = (
                f"{feed.delivered} batches were {wanted} of the script's in one{samples}."
            )
        else:
            evidence.not_consumed[MULTIPLE] = f"{joined} of the script's batches made one, not {wanted}."

    def _prove_knob(
        self, knob: str, settings: Any, workers: List[int], delivered: int, evidence: Evidence
    ) -> None:
        wanted = self._values[knob]
        sentence = f"{delivered} batches came from {_count_workers(workers)}"
        proved = getattr(settings, FIELDS[knob]) == wanted and len(workers) == settings.num_workers
        if knob == PIN:
            proved = self._reading.pinned == wanted
            sentence += f", {'in' if self._reading.pinned else 'not in'} pinned memory"
        elif knob != WORKERS:
            if not settings.num_workers:
                evidence.not_consumed[knob] = f"There are no workers, so {FIELDS[knob]} means nothing."
                return
            sentence += (
                f", {settings.prefetch_factor} asked for ahead of each"
                if knob == PREFETCH
                else f", which {'stay for' if settings.persistent_workers else 'end before'} the next epoch"
            )
        (evidence.consumed if proved else evidence.not_consumed)[knob] = sentence + "."


def _read_value(knob: str, value: Any) -> Any:
    if knob in (PIN, PERSISTENT):
        return read_switch(value)
    return read_count(value, 0 if knob == WORKERS else 1)


def _count_workers(workers: List[int]) -> str:
    if not workers:
        return "the rank's own process"
    noun, numbers = ("process", "pid") if len(workers) == 1 else ("processes", "pids")
    return f"{len(workers)} worker {noun} ({numbers} {', '.join(map(str, workers))})"
