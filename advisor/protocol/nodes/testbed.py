"""The testbed: nodes on one machine whose links are shaped, to learn what a job would gain on such a network."""

import re

from pydantic import Field, ValidationError, field_validator

from advisor.protocol.base import Spec

_UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_RATE = re.compile(rf"(\d+(?:\.\d+)?)({'|'.join(_UNITS)})")
_SLOWEST_BITS_PER_S, _FASTEST_BITS_PER_S = 64_000, 100_000_000_000
_EXAMPLE = "nodes=2,rate=1gbit"
_BURST_S = 0.002
"""What a link may send at once, in seconds of its rate: short against a step, long against the kernel's timers."""
_SMALLEST_BURST_BYTES = 32_768


def burst_bytes(bits_per_s: float) -> int:
    """Return what a shaped link of that rate sends at once after a rest, in bytes."""
    return max(_SMALLEST_BURST_BYTES, round(bits_per_s / 8 * _BURST_S))


def read_rate(rate: str) -> int:
    """Return the bits per second that `1gbit` or `2.5gbit` means; raises ValueError with a sentence."""
    match = _RATE.fullmatch(rate)
    if match is None:
        raise ValueError(f"{rate!r} is not a rate: write a number and kbit, mbit or gbit, for example 1gbit")
    return round(float(match[1]) * _UNITS[match[2]])


def read_link_rate(rate: str) -> int:
    """Return the same of a link that exists: one that carries nothing is refused, too."""
    if bits_per_s := read_rate(rate):
        return bits_per_s
    raise ValueError(f"{rate!r} carries nothing: give a rate above 0, for example 1gbit")


class Testbed(Spec):
    """A testbed as its user writes it: `nodes=2,rate=1gbit`, `nodes=3,rate=200mbit,cpus=1`."""

    __test__ = False

    nodes: int = Field(ge=2, le=64)
    """Nodes, all on one machine and with their ranks on its CPUs."""
    rate: str
    """What each node's link carries at most, in each direction: a number with kbit, mbit or gbit (per second)."""
    cpus: int | None = Field(default=None, ge=1)
    """CPUs that each node has for itself; None lets all nodes share the machine's."""
    name: str = Field(default="", max_length=50, pattern=r"[\w.-]*")
    """Tells testbeds of the same shape apart, whose nodes do not reach each other; a job without one takes any."""

    @field_validator("rate")
    @classmethod
    def _read_rate(cls, rate: str) -> str:
        bits_per_s = read_rate(rate)
        if not _SLOWEST_BITS_PER_S <= bits_per_s <= _FASTEST_BITS_PER_S:
            raise ValueError(f"{rate} cannot be shaped on one machine: choose a rate from 64kbit to 100gbit")
        # One spelling for one rate, the shortest: 1000mbit is 1gbit, and 2.5gbit is 2500mbit.
        unit = next((name for name in reversed(_UNITS) if bits_per_s % _UNITS[name] == 0), "kbit")
        return f"{bits_per_s // _UNITS[unit]}{unit}"

    @property
    def bits_per_s(self) -> int:
        """The rate in bits per second."""
        return int(self.rate[:-4]) * _UNITS[self.rate[-4:]]

    def __str__(self) -> str:
        """Return it as its user writes it."""
        cpus = "" if self.cpus is None else f",cpus={self.cpus}"
        name = f",name={self.name}" if self.name else ""
        return f"nodes={self.nodes},rate={self.rate}{cpus}{name}"

    def serves(self, wanted: "Testbed") -> bool:
        """Whether a job that wants `wanted` can be measured here."""
        return wanted == (self if wanted.name else self.model_copy(update={"name": ""}))

    def describe(self) -> str:
        """Return it as people read it: `a testbed on one machine, links shaped to 1gbit`."""
        return f"a testbed on one machine, links shaped to {self.rate}"


def parse_testbed(text: str) -> Testbed:
    """Return the testbed that `nodes=2,rate=1gbit` means; raises ValueError with a sentence per wrong field."""
    fields: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (word.strip().lower() for word in part.partition("="))
        if not (name and equals and value):
            raise ValueError(f"{part.strip()!r} is not a field of a testbed: write it as {_EXAMPLE}.")
        if name in {"delay", "latency", "loss"}:
            raise ValueError(
                f"{name}={value}: a testbed shapes the rate of links only; leave {name} out. {_EXAMPLE} works."
            )
        if name not in Testbed.model_fields:
            known = ", ".join(Testbed.model_fields)
            raise ValueError(f"{name}={value}: a testbed has no field {name}; it has {known}: {_EXAMPLE}.")
        if name in fields:
            raise ValueError(f"{name} is given twice: give it once, as in {_EXAMPLE}.")
        fields[name] = value
    try:
        return Testbed.model_validate(fields)
    except ValidationError as error:
        sentences = [
            f"{finding['loc'][0]}: {finding['msg'].removeprefix('Value error, ')}"
            for finding in error.errors()
        ]
        raise ValueError(f"{'; '.join(sentences)}. A testbed looks like {_EXAMPLE}.") from error
