"""Every exported file says what it carries, so that it can be verified without the server that it came from."""

import pytest

from advisor.exporters import export
from advisor.exporters.formats import FORMATS
from advisor.protocol.answers.carried import read_carried
from advisor.protocol.base import Value
from advisor.protocol.training.workload import WorkloadKind

CHANGES: dict[str, Value] = {
    "fuse_grad_size_in_MB": 4.0, "last_comm_group_size_MB": 4.0, "num_threads": 2, "loader_num_workers": 2,
    "gradient_merge": True, "gradient_merge_k_steps": 4,
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "runtime"])
def test_a_file_says_what_it_puts_in_force(name: str, advise) -> None:
    kind = FORMATS[name].kinds[0]
    knobs = CHANGES if kind is WorkloadKind.COMMAND else None
    own = ("mode=sync,async",) if name == "paddle-servers" else ()
    advice, job = advise(CHANGES, kind=kind, knobs=knobs, own=own)
    file = export(advice, job, name)
    carried = read_carried(file.content)
    assert carried is not None
    assert (carried.job_id, carried.kind) == (job.id, kind)
    assert dict(carried.changes) == {
        knob: value for knob, value in CHANGES.items() if knob in file.provenance
    }
    assert all(carried.baseline[knob] == advice.baseline[knob] for knob in carried.changes)
    whole = len(carried.changes) == len(CHANGES)
    assert carried.gain == (advice.gain if whole else None)


def test_a_name_of_several_lines_harms_no_file(advise) -> None:
    advice, job = advise(CHANGES, name='two\nlines "and" quotes')
    carried = read_carried(export(advice, job, "torchrun").content)
    assert carried is not None
    assert (carried.job_name[:3], carried.changes["num_threads"]) == ("two", 2)


def test_other_texts_carry_nothing_and_damaged_lines_are_refused() -> None:
    assert read_carried("#!/bin/sh\ntorchrun train.py\n") is None
    with pytest.raises(ValueError, match="changes"):
        read_carried('# Fleet Advisor carries: {"job_id":"a"}\n')
