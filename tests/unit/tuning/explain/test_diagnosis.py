"""Where the time goes, in words and figures."""

from dataclasses import replace

import pytest

from advisor.protocol.answers.advice import Diagnosis, Finding
from advisor.protocol.measured.results import BlockResult, Calibration, Ceiling, LateRank, Phases
from advisor.protocol.measured.telemetry import DeviceTelemetry, NodeTelemetry, Spread
from advisor.protocol.measured.trials import Block, BlockPlan, BlockState
from advisor.tuning.explain.diagnosis import diagnose, say_reach
from advisor.tuning.measure.phases import explain_unclear, exposed_share, pool_phases
from advisor.tuning.space.space import build_space
from tests.unit.tuning.simulated_cluster import START, make_facts, make_job


def block(phases: Phases, late: LateRank | None = None, busy: float | None = None) -> Block:
    return Block(
        id="b", session_id="s", trial_number=0, ordinal=0, race=1, state=BlockState.DONE,
        plan=BlockPlan(block_id="b", trial_number=0), issued_at=START,
        result=BlockResult(
            steps=1, step_time_s=(0.1,), samples_per_step=1, wall_s=0.1, phases=phases,
            per_rank_work_s=(0.1, 0.1), late=late,
        ),
        telemetry=() if busy is None else (node(busy),),
    )  # fmt: skip


def node(busy: float, host: float = 0.5) -> NodeTelemetry:
    share, of_host = (Spread(mean=mean, median=mean, max=mean) for mean in (busy, host))
    device = DeviceTelemetry(index=0, busy=share, memory_bytes=1)
    return NodeTelemetry(
        agent="n0", samples=5, cpu=of_host, session_cpu=of_host, memory_bytes=1, network_bytes_per_s=0,
        devices=(device,),
    )  # fmt: skip


def finding(diagnosis: Diagnosis, bound: str) -> Finding:
    return next(f for f in diagnosis.findings if f.bound == bound)


COMPUTING = Phases(forward_s=0.03, backward_s=0.06, exposed_comm_s=0.001)


def test_stalls_beside_saves_of_the_scripts_own_are_told_so() -> None:
    plain = block(Phases(forward_s=0.02, backward_s=0.02, stalls_s=0.05, exposed_comm_s=0.001))
    assert "Look for other load" in diagnose([plain]).sentence
    assert plain.result
    saving = plain.model_copy(update={"result": replace(plain.result, saves_beside=0.6)})
    told = diagnose([saving]).sentence
    assert "in 60 % of the steps a thread of its own saves" in told
    assert "Save less often or less" in told
    assert "other load" not in told


def test_a_broadcast_of_buffers_is_named_with_its_remedy_and_is_no_ceiling_of_the_reductions() -> None:
    blocks = [block(Phases(forward_s=0.02, backward_s=0.02, exposed_comm_s=0.01, buffers_s=0.15))]
    found = diagnose(blocks)
    assert "150.0 ms of a 200.0 ms step is the broadcast of the model's buffers" in found.sentence
    assert "Give DDP broadcast_buffers=False" in found.sentence
    assert found.ceiling_ratio == pytest.approx(0.2 / 0.19)
    assert "broadcast_buffers=False" in str(explain_unclear(blocks))


@pytest.mark.parametrize(
    ("phases", "bound"),
    [
        (Phases(forward_s=0.01, backward_s=0.03, exposed_comm_s=0.06), "communication"),
        (Phases(forward_s=0.02, backward_s=0.04, exposed_comm_s=0.04), "compute"),
        (Phases(forward_s=0.02, backward_s=0.03, exposed_comm_s=0.01, collectives_s=0.05), "collectives"),
        (Phases(forward_s=0.02, backward_s=0.03, exposed_comm_s=0.03, collectives_s=0.029), "communication"),
        (Phases(forward_s=0.02, backward_s=0.02, exposed_comm_s=0.01, buffers_s=0.05), "buffers"),
        (Phases(forward_s=0.02, backward_s=0.02, exposed_comm_s=0.01, wait_s=0.05), "waiting"),
        (COMPUTING, "compute"),
        (Phases(data_wait_s=0.06, forward_s=0.02, backward_s=0.03, exposed_comm_s=0.001), "input"),
        (Phases(forward_s=0.02, backward_s=0.02, own_code_s=0.05, exposed_comm_s=0.001), "own_code"),
        (Phases(forward_s=0.02, backward_s=0.02, evaluation_s=0.05, exposed_comm_s=0.001), "evaluation"),
        (Phases(forward_s=0.02, backward_s=0.02, garbage_s=0.05, exposed_comm_s=0.001), "garbage"),
        (Phases(forward_s=0.02, backward_s=0.02, stalls_s=0.05, exposed_comm_s=0.001), "stalls"),
        # nanoGPT on a CPU: clipping is no reason to say that computing does not bound it.
        (Phases(forward_s=0.03, backward_s=0.04, own_code_s=0.017, exposed_comm_s=0.01), "compute"),
        (
            Phases(data_wait_s=0.03, forward_s=0.01, backward_s=0.02, own_code_s=0.03, exposed_comm_s=0.02),
            "balanced",
        ),
        (Phases(forward_s=0.03, backward_s=0.06), "unmeasured"),
        (Phases(forward_s=0.03, backward_s=0.06, own_code_s=0.08), "unmeasured"),
        (Phases(data_wait_s=0.05, forward_s=0.02, backward_s=0.03), "input"),
        (Phases(forward_s=0.02, backward_s=0.03, own_code_s=0.05), "own_code"),
    ],
)
def test_the_largest_share_names_the_bound(phases: Phases, bound: str) -> None:
    found = diagnose([block(phases)])
    assert found.bound == bound
    assert [one.bound for one in found.findings if one.holds] == (
        [] if bound in {"balanced", "unmeasured"} else [bound]
    )


def test_what_is_no_bound_gets_no_remedy() -> None:
    """Only where the wire dominates faster links are what helps."""
    found = diagnose([block(Phases(forward_s=0.02, backward_s=0.04, exposed_comm_s=0.04))])
    assert "faster links" not in found.sentence
    assert "faster devices" in found.sentence
    assert "67 % faster" in found.sentence
    for device in (None, 0.97):
        own = diagnose(
            [block(Phases(forward_s=0.02, backward_s=0.02, own_code_s=0.05, exposed_comm_s=0.0), busy=device)]
        )
        assert "kernel" not in own.sentence
        assert "faster devices" not in own.sentence


def test_every_finding_comes_with_its_share_and_figures_largest_first() -> None:
    diagnosis = diagnose([block(Phases(forward_s=0.01, backward_s=0.03, exposed_comm_s=0.06))])

    assert {f.bound for f in diagnosis.findings} == {
        "communication",
        "compute",
        "input",
        "straggler",
        "own_code",
    }
    shares = [f.share for f in diagnosis.findings]
    assert shares == sorted(shares, reverse=True)
    communication = finding(diagnosis, "communication")
    assert communication.share == pytest.approx(0.6)
    assert communication.holds
    assert "60.0 ms of a 100.0 ms step" in communication.evidence
    assert "faster links" in communication.evidence
    assert "150 % faster" in diagnosis.sentence
    assert not finding(diagnosis, "input").holds


@pytest.mark.parametrize(("waited_s", "bound"), [(0.06, "straggler"), (0.02, "compute")])
def test_a_late_rank_is_named_and_what_it_does_beyond_the_others_is_no_bound_by_itself(
    waited_s: float, bound: str
) -> None:
    late = LateRank(rank=1, waited_s=waited_s, part="own_code_s", excess_s=waited_s)
    shown = Phases(forward_s=0.01, backward_s=0.08 - waited_s, own_code_s=waited_s, exposed_comm_s=0.01)

    diagnosis = diagnose([block(shown, late)])

    assert diagnosis.bound == bound
    assert diagnosis.skew == pytest.approx(waited_s / 0.1)
    assert "Rank 1 is late" in diagnosis.sentence
    assert "the script's own code between the phases" in diagnosis.sentence
    assert sum(found.share for found in diagnosis.findings) == pytest.approx(1.0)
    assert diagnosis.scaling_before is None


def test_idle_devices_show_a_step_that_the_host_bounds() -> None:
    # Events on a stream count the gaps between small kernels as computation: only telemetry sees them.
    assert diagnose([block(COMPUTING, busy=0.97)]).bound == "compute"
    diagnosis = diagnose([block(COMPUTING, busy=0.45)])

    assert diagnosis.bound == "launch"
    assert finding(diagnosis, "launch").share == pytest.approx(0.55)
    assert "55 %" in diagnosis.sentence


def test_idle_devices_and_an_idle_host_wait_for_something_else() -> None:
    space = build_space(make_job(), make_facts(), [])
    busy_host = [block(COMPUTING, busy=0.45)]
    # Two ranks on four processors: 5 % of them are a tenth of a processor each.
    idle_host = [busy_host[0].model_copy(update={"telemetry": (node(0.55, host=0.05),)})]

    assert finding(diagnose(busy_host, space), "launch").holds
    found = finding(diagnose(idle_host, space), "launch")
    assert not found.holds
    assert "0.1 processors" in found.evidence


def test_devices_that_wait_for_data_are_not_waiting_for_the_host() -> None:
    phases = Phases(data_wait_s=0.05, forward_s=0.02, backward_s=0.03, exposed_comm_s=0.001)

    diagnosis = diagnose([block(phases, busy=0.5)])

    assert diagnosis.bound == "input"
    assert not finding(diagnosis, "launch").holds


def test_findings_name_the_knobs_they_keep_and_rule_out() -> None:
    probe = [block(Phases(forward_s=0.03, backward_s=0.06, exposed_comm_s=0.0005))]
    space = build_space(make_job(), make_facts(), probe)

    diagnosis = diagnose(probe, space)

    communication, compute = finding(diagnosis, "communication"), finding(diagnosis, "compute")
    assert "fuse_grad_size_in_MB" in communication.knobs_out
    assert "fuse_grad_size_in_MB" not in communication.knobs_in
    assert "num_threads" in compute.knobs_in


def test_the_ceiling_is_the_step_without_exposed_communication() -> None:
    diagnosis = diagnose([block(Phases(forward_s=0.05, backward_s=0.03, exposed_comm_s=0.02))])

    assert diagnosis.ceiling_ratio == pytest.approx(1.25)
    assert "25 % faster" in diagnosis.sentence


def test_the_block_that_measured_devices_and_links_tells_how_far_they_are_from_their_limits() -> None:
    phases = Phases(forward_s=0.05, backward_s=0.03, exposed_comm_s=0.02)
    probe = block(phases)
    assert probe.result is not None
    counted = replace(probe.result, calibration=Calibration(ceiling=Ceiling(2e9, 1e11, "float32")))
    blocks = [block(phases), probe.model_copy(update={"result": counted})]

    assert say_reach(blocks, make_job().facts).startswith("20% of what matrices reach here (float32, ")
    assert say_reach(blocks[:1], make_job().facts) == ""
    # The page says once what communication costs: the mean over all blocks.
    several = [block(Phases(forward_s=0.05, backward_s=0.05)), *blocks]
    ceiling = diagnose(several).ceiling_ratio
    assert ceiling is not None
    assert f"+{ceiling - 1:.0%} from communication" in say_reach(several, make_job().facts)


@pytest.mark.parametrize(
    ("phases", "is_the_scripts"),
    [
        (Phases(forward_s=0.02, backward_s=0.02, exposed_comm_s=0.0, own_code_s=0.1), True),
        (Phases(forward_s=0.02, backward_s=0.02, exposed_comm_s=0.0, evaluation_s=0.1), True),
        # Fewer threads end these, and a sharded model's knobs shorten those.
        (Phases(forward_s=0.02, backward_s=0.02, exposed_comm_s=0.0, stalls_s=0.1), False),
        (Phases(forward_s=0.02, backward_s=0.02, exposed_comm_s=0.0, wait_s=0.1), False),
        (Phases(forward_s=0.02, backward_s=0.02, exposed_comm_s=0.0, collectives_s=0.1), False),
    ],
)
def test_only_of_the_scripts_own_lines_it_is_said_that_no_knob_changes_them(
    phases: Phases, is_the_scripts: bool
) -> None:
    assert ("No knob changes that" in diagnose([block(phases)]).sentence) == is_the_scripts


def test_scaling_efficiency_is_told_before_and_after() -> None:
    before = block(Phases(forward_s=0.05, backward_s=0.03, exposed_comm_s=0.02))
    after = block(Phases(forward_s=0.05, backward_s=0.03, exposed_comm_s=0.005))

    diagnosis = diagnose([before], after=[after])

    assert diagnosis.scaling_before == pytest.approx(0.8)
    assert diagnosis.scaling_after == pytest.approx(0.08 / 0.085)
    assert diagnose([before]).scaling_after is None


def test_unmeasured_communication_is_not_called_zero() -> None:
    diagnosis = diagnose([block(Phases(forward_s=0.05, backward_s=0.05))])

    assert diagnosis.ceiling_ratio is None
    assert diagnosis.scaling_before is None
    assert "could not be measured" in diagnosis.sentence
    assert exposed_share(Phases(forward_s=0.1)) is None


def test_phases_that_hide_communication_are_not_called_computation() -> None:
    diagnosis = diagnose([block(Phases(forward_s=0.03, backward_s=0.06))])

    assert {found.bound for found in diagnosis.findings} == {"input", "own_code"}
    assert "with the communication in them" in diagnosis.sentence
    assert "hidden" not in diagnosis.sentence


def test_without_phases_nothing_is_said() -> None:
    assert "not measured" in diagnose([]).sentence
    assert pool_phases([]).total_s() == 0.0
