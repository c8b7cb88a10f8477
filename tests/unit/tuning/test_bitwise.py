"""Jobs that advise only what leaves every bit: what is raced, what is advised, and with what certificate."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from pydantic import ValidationError

from advisor.exporters import export
from advisor.protocol.answers.advice import Advice, Verdict
from advisor.protocol.kinds import Allow, Effect, Place, Switch
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.trials import Outcome, Purpose, Session

from .simulated_cluster import QUIET, SimulatedCluster, make_job, make_spec

DIFFER = "Not bit for bit: 12 steps left 3 of 9 tensors other than under the script's own settings."


def speed(changes: Changes) -> float:
    """Communicators are what is fastest, and small buckets what is second."""
    factor = 1.25 if changes.get("nccl_comm_num", 1) != 1 else 1.0
    return factor * (1.15 if changes.get("fuse_grad_size_in_MB", 25.0) < 20.0 else 1.0)


def tune(
    say: Callable[[Changes, int], str], speed: Callable[[Changes], float] = speed
) -> tuple[SimulatedCluster, Advice]:
    """`say`: (changes, how often they were raced before) -> why their bits are others, "" where they are the same."""
    raced: dict[Changes, int] = {}

    def alter(changes: Changes, _: Session, result: BlockResult) -> BlockResult:
        count = raced[changes] = raced.get(changes, -1) + 1
        why = say(changes, count)
        return replace(result, bits_differ=why, bit_steps=0 if why else 12)

    cluster = SimulatedCluster(make_job(make_spec(allow="bitwise")), speed=speed, noise=QUIET, alter=alter)
    advice = cluster.run()
    assert isinstance(advice, Advice)
    return cluster, advice


def test_the_fastest_that_keeps_every_bit_is_advised_with_its_certificate() -> None:
    cluster, advice = tune(lambda changes, _: DIFFER if changes.get("nccl_comm_num", 1) != 1 else "")

    assert all(race.rules.bit_check_steps == 12 for race in cluster.races)
    tried = [t for t in cluster.trials if "nccl_comm_num" in t.changes]
    assert tried
    assert {(t.outcome, t.outcome_reason) for t in tried} == {(Outcome.UNCERTIFIED, DIFFER)}
    assert advice.verdict is Verdict.CHANGE
    assert advice.changes["fuse_grad_size_in_MB"] < 20.0
    assert "nccl_comm_num" not in advice.changes
    confirmed = sum(len(r.arms) > 1 and r.arms[1].purpose is Purpose.CONFIRM for r in cluster.races)
    assert advice.certificate == (
        "Parameters, buffers and optimizer states were bit for bit equal over 12 steps on 4 ranks, in each of "
        f"{confirmed} races."
    )
    assert f'"certificate": "{advice.certificate}"' in export(advice, cluster.job, "json").content
    dropped = {d.knob for d in advice.dropped}
    for knob in CATALOGUE.values():
        if knob.effect is not Effect.EXACT or knob.switch is Switch.COLD or knob.place is Place.DATA_READING:
            assert knob.name in dropped


def test_a_value_that_leaves_other_bits_by_itself_is_in_no_later_strategy() -> None:
    """However fast it is."""
    cluster, _ = tune(
        lambda changes, _: DIFFER if "num_threads" in changes else "",
        lambda changes: speed(changes) * (2.0 if "num_threads" in changes else 1.0),
    )
    raced = [[arm.changes for arm in race.arms] for race in cluster.races]
    place = next(i for i, arms in enumerate(raced) if {"num_threads"} in map(set, arms))
    assert raced[place + 1 :]
    assert not [changes for arms in raced[place + 1 :] for changes in arms if "num_threads" in changes]


def test_one_launch_that_differs_takes_the_advice_back() -> None:
    """Every strategy is certified in the search, and differs in its third race."""
    cluster, advice = tune(lambda changes, count: DIFFER if changes and count >= 2 else "")

    fallen = [t for t in cluster.trials if t.purpose is Purpose.CONFIRM and t.outcome is Outcome.UNCERTIFIED]
    assert fallen
    assert advice.verdict is not Verdict.CHANGE
    assert (advice.certificate, advice.changes) == ("", Changes())


def test_a_script_that_does_not_repeat_itself_is_told_so_and_nothing_is_raced() -> None:
    cluster, advice = tune(lambda *_: "The script as it stands does not repeat itself.")

    assert not [trial for trial in cluster.trials if trial.changes]
    assert advice.verdict is Verdict.KEEP
    assert "The script as it stands does not repeat itself." in {d.reason for d in advice.dropped}
    assert advice.headline.endswith("the script as it stands does not repeat itself.")


def test_an_exact_job_asks_for_no_check() -> None:
    cluster = SimulatedCluster(make_job(), speed=speed, noise=QUIET)
    advice = cluster.run()
    assert isinstance(advice, Advice)
    assert {race.rules.bit_check_steps for race in cluster.races} == {0}
    assert (advice.certificate, advice.allowed) == ("", Allow.EXACT)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"verify": {"nccl_tuner_allreduce": "nvls/simple"}}, "takes a launch of its own"),
        ({"verify": {"loader_num_workers": 2}}, "what other workers draw"),
        ({"verify": {"fp16_allreduce": True}}, "allow numeric"),
        (
            {"workload": {"command": ["train", "${num_threads}"], "kind": "command"}},
            "inside of PyTorch's ranks only",
        ),
    ],
)
def test_what_cannot_be_certified_is_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        make_spec(allow="bitwise", **fields)
