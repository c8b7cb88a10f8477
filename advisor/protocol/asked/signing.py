"""What the owner of a job signs, and which strategies of the server's the signature covers.

The signature is over the statement's very characters, and an agent runs what the statement says: nothing has to be
written twice in the same way, and releases need not agree about how.
"""

from collections.abc import Mapping

from pydantic import Field

from advisor.protocol.asked.jobs import Budget, JobSpec
from advisor.protocol.base import Moment, Spec, Value
from advisor.protocol.kinds import Place
from advisor.protocol.knobs.knob import Knob
from advisor.protocol.knobs.reach import list_given


class Statement(Spec):
    """This job may be run, as one job, until then."""

    nonce: str = Field(min_length=16, max_length=100)
    """Never the same again: an agent takes a statement for one job only."""
    expires_at: Moment
    """Until when sessions of the job may begin."""
    job: JobSpec
    """The job's specification, unsigned."""


def is_for(signed: JobSpec, wanted: JobSpec) -> bool:
    """Whether a signed specification is that of a job; name and budget may differ."""
    return _strip(signed) == _strip(wanted)


def explain_foreign_strategy(signed: JobSpec, changes: Mapping[str, Value]) -> str:
    """Return why a strategy is none of those that a signed job may try, in a sentence; empty where it is one."""
    for name, value in changes.items():
        if why := _explain(signed, name, value):
            return f"The server asks for {name} = {value!r}, which the job's signature does not cover: {why}."
    return ""


def _explain(signed: JobSpec, name: str, value: Value) -> str:
    knob = signed.catalogue.get(name)
    if knob is None:
        return "this release knows no such knob"
    try:
        knob.parse(value)
    except ValueError as error:
        return str(error)
    if signed.verify:
        return "" if signed.verify.get(name) == value else "the job verifies one strategy, which is another"
    if name in signed.freeze:
        return "the job freezes it"
    if name in signed.values and value not in signed.values[name]:
        return "the job names the values to try, and this is none of them"
    if knob.kind is str and not (knob.choices or knob.form) and value not in signed.values.get(name, ()):
        given = list_given(signed.workload).get(name)
        return "" if value == given else "it may be any text, and the job names no values to try"
    asked = {relative for asked in signed.knobs for relative in _list_family(signed.catalogue[asked])}
    if signed.knobs and knob.place is not Place.OWN and not asked & _list_family(knob):
        return "the job names the knobs to search, and this one belongs to none of them"
    return ""


def _list_family(knob: Knob) -> set[str]:
    """A knob and the switches that it goes with: a strategy is completed by what they need."""
    return {knob.name, knob.needs, knob.timed_with} - {""}


def _strip(spec: JobSpec) -> JobSpec:
    return spec.model_copy(update={"name": "", "budget": Budget(), "signed": None})
