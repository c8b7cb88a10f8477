"""A made-up job, told in full: tests of the pages start from it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache

from advisor.protocol.answers.advice import (
    Action,
    Advice,
    Cost,
    Diagnosis,
    DroppedKnob,
    Interval,
    KnobReason,
    Provenance,
    RungAdvice,
    Verdict,
)
from advisor.protocol.asked.jobs import Job, JobSpec, JobState, Stage
from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.results import BlockResult, LateRank, Phases
from advisor.protocol.measured.runs import ProductionRun
from advisor.protocol.measured.telemetry import TelemetryPoint
from advisor.protocol.measured.trials import (
    Block,
    BlockPlan,
    BlockState,
    BlockSummary,
    JobHistory,
    Outcome,
    Purpose,
    Session,
    SessionState,
    Trial,
    TrialState,
)
from advisor.protocol.nodes.cluster import Cluster, Device, DeviceKind, Link, Node
from advisor.protocol.standing import SoFar, Standing
from advisor.protocol.training.workload import Workload, WorkloadFacts
from advisor.protocol.views import AgentState, AgentView, EventKind, JobEvent, LogChunk
from tests.samples import evidence
from tests.samples.telemetry import make_flag, make_node_telemetry, make_points

_MB = 2**20
_SAMPLES_PER_STEP = 256
_WINNER: dict[str, Value] = {"fuse_grad_size_in_MB": 96.0, "nccl_comm_num": 2, "sync_nccl_allreduce": False}
_BEFORE = Phases(
    data_wait_s=0.0012, forward_s=0.048, backward_s=0.0762, exposed_comm_s=0.0242, optimizer_s=0.0106,
    own_code_s=0.0011, stalls_s=0.0041,
)  # fmt: skip
_AFTER = Phases(
    data_wait_s=0.0011, forward_s=0.048, backward_s=0.0758, exposed_comm_s=0.0031, optimizer_s=0.0098, own_code_s=0.0011
)  # fmt: skip
_LATE = 3
_LATE_S = 0.013
"""What the sample's late rank computes longer in every step than the others, which wait for it."""
_NAMES = ("node01", "node02")
_NODES = tuple(
    Node(
        hostname=f"node0{index}",
        cpu_count=96,
        memory_bytes=1024 * 2**30,
        devices=tuple(
            Device(index=device, uuid=f"GPU-{index}{device}", name="NVIDIA H200", memory_bytes=139 * 2**30)
            for device in range(8)
        ),
        links=(Link(name="eth0", address=f"10.0.0.{index}", bits_per_second=100_000_000_000),),
        telemetry="nvml",
        python_version="3.11.9",
        torch_version="2.13.0",
    )
    for index in (1, 2)
)
_TRIALS: tuple[tuple[Purpose, Mapping[str, Value], Outcome | None, float], ...] = (
    (Purpose.BASELINE, {}, None, 161.3),
    (Purpose.SEARCH, {"fuse_grad_size_in_MB": 10.0}, Outcome.FINISHED, 158.4),
    (Purpose.SEARCH, {"fuse_grad_size_in_MB": 98.0}, Outcome.FINISHED, 149.2),
    (Purpose.SEARCH, {"nccl_comm_num": 2, "sync_nccl_allreduce": False}, Outcome.FINISHED, 152.7),
    (Purpose.SEARCH, {"fuse_grad_size_in_MB": 32.0, "num_threads": 12}, Outcome.PRUNED, 171.0),
    (Purpose.SEARCH, _WINNER, Outcome.FINISHED, 139.1),
    (Purpose.SEARCH, {"FLAGS_fraction_of_gpu_memory_to_use": 0.97}, Outcome.OUT_OF_MEMORY, 0.0),
    (Purpose.SEARCH, {"fp16_allreduce": True}, Outcome.FINISHED, 134.8),
    (Purpose.SEARCH, {"NCCL_SOCKET_NTHREADS": 4}, Outcome.INEFFECTIVE, 0.0),
    (Purpose.SEARCH, {"localsgd": True, "localsgd_k_steps": 4}, Outcome.FINISHED, 131.0),
    (Purpose.CONFIRM, _WINNER, None, 138.9),
)
_WARMUP = 2
OUT_OF_MEMORY_LOG = (
    "\x1b[31mTraceback (most recent call last):\x1b[0m\n"
    '  File "train.py", line 88, in <module>\n    loss.backward()\n'
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate <b>2.40 GiB</b>\n"
    "<script>alert('a training script wrote this')</script>\n"
)


@dataclass(frozen=True)
class Story:
    """A job with everything that belongs to it."""

    job: Job
    history: JobHistory
    advice: Advice | None
    events: tuple[JobEvent, ...]
    log: tuple[LogChunk, ...]
    telemetry: tuple[TelemetryPoint, ...] = ()
    runs: tuple[ProductionRun, ...] = ()


def _wobble(place: int) -> float:
    """A repeatable stand-in for noise, within ±1."""
    return math.sin(place * 12.9898) * 0.7 + math.sin(place * 4.1414) * 0.3


def _make_block(
    number: int,
    ordinal: int,
    changes: Mapping[str, Value],
    step_ms: float,
    at: datetime,
    race: int,
) -> Block:
    scale = 1 + 0.006 * _wobble(ordinal * 7 + number)
    spread = [1 + 0.012 * _wobble(step + ordinal * 31) + 0.2 * (step < _WARMUP) for step in range(60)]
    times = tuple(step_ms / 1000 * scale * each for each in spread)
    is_winner = changes == _WINNER
    buckets = (9 * _MB, *[96 * _MB] * 8) if is_winner else (_MB, *[25 * _MB] * 30)
    return Block(
        id=f"block{ordinal}", session_id="s1", trial_number=number, ordinal=ordinal, race=race,
        state=BlockState.DONE,
        plan=BlockPlan(block_id=f"block{ordinal}", trial_number=number, overrides=dict(changes)),
        result=BlockResult(
            steps=60, warmup_steps=10, step_time_s=times, samples_per_step=_SAMPLES_PER_STEP,
            samples=60 * _SAMPLES_PER_STEP,
            wall_s=sum(times),
            per_rank_step_time_s=tuple(step_ms / 1000 * (1 + 0.001 * (rank * 7 % 22)) for rank in range(16)),
            per_rank_work_s=tuple(0.118 + 0.001 * _wobble(r + 5 * ordinal) + _LATE_S * (r == _LATE) for r in range(16)),
            late=LateRank(rank=_LATE, waited_s=_LATE_S, part="backward_s", excess_s=_LATE_S), phases_rank=_LATE,
            per_rank_phases=_list_accounts(_AFTER if is_winner else _BEFORE),
            phases=_AFTER if is_winner else _BEFORE,
            losses=tuple(2.4 - 0.002 * step for step in range(60)), peak_memory_bytes=101 * 2**30,
            bucket_bytes=buckets,
            consumed={name: f"read back from DDP's own log as {value}" for name, value in changes.items()},
        ),
        summary=BlockSummary(
            samples_per_s=_SAMPLES_PER_STEP * 1000 / (step_ms * scale), log_step_time=math.log(step_ms * scale / 1000),
            log_step_time_se=0.0041, steady_steps=60 - _WARMUP, steady=True, median_step_time_s=step_ms * scale / 1000,
            p95_step_time_s=step_ms * scale / 1000 * 1.017,
        ),
        issued_at=at, finished_at=at + timedelta(seconds=12), utilisation=0.84 if step_ms > 155 else 0.95,
        telemetry=make_node_telemetry(_NAMES),
    )  # fmt: skip


def _list_accounts(late: Phases) -> tuple[Phases, ...]:
    waits = {"backward_s": late.backward_s - _LATE_S, "wait_s": _LATE_S}
    return tuple(late if rank == _LATE else replace(late, **waits) for rank in range(16))


def _make_history(start: datetime, rounds: int) -> JobHistory:
    trials: list[Trial] = []
    blocks: list[Block] = []
    for number, (purpose, changes, outcome, step_ms) in enumerate(_TRIALS):
        if purpose is Purpose.CONFIRM and not rounds:
            continue
        at = start + timedelta(minutes=2 + 3 * number)
        reasons = {
            Outcome.OUT_OF_MEMORY: "Rank 3 ran out of device memory in the third step: 139.1 of 139.8 GiB were in use.",
            Outcome.INEFFECTIVE: "NCCL did not read NCCL_SOCKET_NTHREADS: this cluster communicates over InfiniBand.",
            Outcome.PRUNED: "Clearly slower than the baseline after one block.",
        }
        trials.append(
            Trial(
                number=number, purpose=purpose, changes=dict(changes), effect=CATALOGUE.effect_of(changes),
                because="The script as it stands: every gain is against it." if not number
                else "The fastest finalist, against the baseline." if purpose is Purpose.CONFIRM
                else "A rule of thumb, then its neighbourhood.",
                state=TrialState.OPEN if outcome is None else TrialState.CLOSED, outcome=outcome,
                outcome_reason=reasons.get(outcome, "") if outcome else "",
                log_tail=OUT_OF_MEMORY_LOG if outcome is Outcome.OUT_OF_MEMORY else "",
                created_at=at, finished_at=None if outcome is None else at + timedelta(minutes=1),
            )
        )  # fmt: skip
        if step_ms and purpose is not Purpose.CONFIRM:
            blocks.append(_make_block(number, len(blocks), changes, step_ms, at, number))
    for race in range(len(_TRIALS), len(_TRIALS) + rounds):
        at = start + timedelta(minutes=40 + race - len(_TRIALS))
        blocks.append(_make_block(0, len(blocks), {}, 161.3, at, race))
        blocks.append(_make_block(10, len(blocks), _WINNER, 138.9, at, race))
    session = Session(
        id="s1", job_id="sample", generation=1, state=SessionState.RUNNING, because="The first launch.",
        agents=("node01", "node02"), created_at=start, started_at=start + timedelta(seconds=20),
    )  # fmt: skip
    return JobHistory(trials=tuple(trials), blocks=tuple(blocks), sessions=(session,))


def _make_job(now: datetime) -> Job:
    return Job(
        id="sample",
        spec=JobSpec(
            name="resnet50-ddp",
            workload=Workload(command=("torchrun", "--nproc-per-node", "8", "train.py"), working_dir="/data/resnet"),
            nodes=2,
        ),
        state=JobState.RUNNING,
        stage=Stage.SEARCH,
        owner="ada",
        created_at=now - timedelta(minutes=52),
        started_at=now - timedelta(minutes=51),
        facts=WorkloadFacts(
            backend="nccl", device=DeviceKind.CUDA, device_name="NVIDIA H200", world_size=16, local_world_size=8,
            nodes=2, gradient_bytes=98 * _MB, parameter_tensors=161, layers=107, batch_size_per_rank=16,
            torch_version="2.13.0",
        ),
        cluster=Cluster(nodes=_NODES),
        refusals={"sync_batch_norm": "The script converts its batch norms itself."},
    )  # fmt: skip


def make_advice(job_id: str) -> Advice:
    """Return an advice with a confirmed gain and a ladder above it."""
    baseline: dict[str, Value] = {name: knob.default for name, knob in CATALOGUE.items()}
    baseline["fuse_grad_size_in_MB"] = 25.0
    return Advice(
        job_id=job_id, verdict=Verdict.CHANGE, allowed=Effect.EXACT,
        headline="Faster: at least +13.9 %, most likely +16.1 % (95 % CI +13.9 … +18.2 %) with fewer, larger buckets.",
        action=Action.USE, what_to_do="Use the strategy: `advisor export sample` writes it for your framework.",
        strategy={**baseline, **_WINNER}, baseline=baseline, changes=_WINNER,
        provenance={
            name: Provenance.TRANSLATED if name in _WINNER else Provenance.CARRIED for name in CATALOGUE
        },
        gain=Interval(ratio=1.161, low=1.139, high=1.182, rounds=8, sessions=2),
        baseline_samples_per_s=1587.1, strategy_samples_per_s=1842.6,
        left=Changes({"num_iteration_per_drop_scope": 30}),
        pareto=evidence.make_pareto(), forecasts=evidence.make_forecasts(),
        search_ended_because=evidence.SEARCH_ENDED,
        reasons=(
            KnobReason(
                knob="fuse_grad_size_in_MB", before=25.0, after=96.0, effect=evidence.SAVED,
                sentence="31 buckets became 9: exposed communication fell from 24.2 to 3.1 ms a step.",
                evidence="DDP's log: 9 buckets, the largest 96.0 MB",
            ),
            KnobReason(
                knob="nccl_comm_num", before=1, after=2,
                sentence="Two communicators let one bucket travel while the next is reduced.",
                evidence="2 process groups were used in turn",
            ),
            KnobReason(
                knob="sync_nccl_allreduce", before=True, after=False,
                sentence="Off: communicators overlap only where their reductions do not wait for each other.",
                evidence="hook: concurrent",
            ),
        ),
        ladder=(
            RungAdvice(
                effect=Effect.NUMERIC, changes={"fp16_allreduce": True},
                gain=Interval(ratio=1.197, low=1.171, high=1.224, rounds=6, sessions=1),
                sentence="16-bit gradient reduction would bring this much; the loss at equal samples was not worse.",
                caveat="A short trial cannot see what rounding does at the end of a long training.",
            ),
            RungAdvice(
                effect=Effect.CONVERGENCE, changes={"localsgd": True, "localsgd_k_steps": 4}, gain=None,
                sentence="Searched, not confirmed: the loss at equal samples was 3 % worse.",
            ),
        ),
        diagnosis=Diagnosis(
            bound="communication", ceiling_ratio=1.18, skew=0.011,
            sentence="24.2 of 161.3 ms a step wait for gradients; the reader and the ranks keep up.",
            findings=evidence.make_findings(), scaling_before=0.85, scaling_after=0.977,
        ),
        phases_before=_BEFORE, phases_after=_AFTER,
        buckets_before=(_MB, *[25 * _MB] * 30), buckets_after=(9 * _MB, *[96 * _MB] * 8),
        cost=Cost(wall_s=2610, device_hours=11.6, trials=9, sessions=2, pays_back_after_s=18_830),
        dropped=(
            DroppedKnob(knob="num_threads", reason="The training computes on GPUs: its threads only feed them."),
            DroppedKnob(knob="conv_workspace_size_limit", reason="Not varied yet: exported at its default."),
        ),
        next_steps=(
            "Put the strategy in place (run.sh trains your script under it) and compare one run at full length.",
            "With --allow numeric, 16-bit reduction could bring about 3 % more.",
        ),
        cluster="2 nodes × 8 NVIDIA H200", software={"torch": "2.13.0", "NCCL": "2.29.3", "driver": "580.82"},
    )  # fmt: skip


def keep_defaults(advice: Advice) -> Advice:
    """Return the same advice without a reliable gain."""
    return advice.model_copy(
        update={
            "verdict": Verdict.KEEP, "changes": Changes(), "strategy": advice.baseline, "reasons": (),
            "left": Changes(),
            "headline": "Keep your settings: the strategy that looked best, num_threads 2, brings less than 2 %: "
            "+0.4 % measured, 95 % CI −0.9 … +1.7 %. The 22 others that the search measured looked no better than "
            "+0.9 %; gains up to +2.6 % are not excluded.",
            "action": Action.KEEP, "what_to_do": "Change nothing.",
            "gain": Interval(ratio=1.004, low=0.991, high=1.017, rounds=16, sessions=2),
            "phases_after": advice.phases_before, "buckets_after": advice.buckets_before,
            "strategy_samples_per_s": advice.baseline_samples_per_s,
            "cost": advice.cost.model_copy(update={"pays_back_after_s": None}),
            "diagnosis": Diagnosis(
                bound="compute", ceiling_ratio=1.02, skew=0.004,
                sentence="Only 3.1 of 161.3 ms a step wait for gradients: no knob of communication can bring more.",
            ),
            "next_steps": ("Faster devices, or a smaller model: computation fills the step.",),
        }
    )  # fmt: skip


@cache
def make_running_story(now: datetime) -> Story:
    """Return a job in the middle of its search, with a trial being measured."""
    believed = SoFar(ratio=1.16, low=1.13, high=1.19, races=1, launches=1)
    job = _make_job(now).model_copy(update={"standing": Standing(trial_number=5, gain=believed, chance=0.81)})
    history = _make_history(job.created_at, rounds=0)
    at = now - timedelta(seconds=9)
    trial = Trial(
        number=10, purpose=Purpose.SEARCH, changes={"fuse_grad_size_in_MB": 128.0, "nccl_comm_num": 2},
        because="The model of earlier trials expects 2 % more here.", created_at=at,
    )  # fmt: skip
    block = Block(
        id="live", session_id="s1", trial_number=10, ordinal=20, race=20, state=BlockState.ISSUED, issued_at=at,
        plan=BlockPlan(block_id="live", trial_number=10, overrides=trial.changes),
    )  # fmt: skip
    history = history.model_copy(
        update={"trials": (*history.trials, trial), "blocks": (*history.blocks, block)}
    )
    sentences = (
        (EventKind.JOB, "Submitted by ada.", None),
        (EventKind.SESSION, "Launch 1 began on node01 and node02.", None),
        (EventKind.BLOCK, "The baseline was measured: 1 587 samples/s.", 0),
        (EventKind.TRIAL, "Trial 6 ran out of memory: Rank 3 ran out of device memory in the third step.", 6),
        (EventKind.TRIAL, "Trial 10 began: the model of earlier trials expects 2 % more here.", 10),
    )
    events = tuple(
        JobEvent(
            seq=seq,
            at=job.created_at + timedelta(minutes=10 * seq),
            kind=kind,
            sentence=sentence,
            trial_number=number,
        )
        for seq, (kind, sentence, number) in enumerate(sentences, start=1)
    )
    log = (
        LogChunk(seq=1, session_id="s1", agent="node01", text="[rank0] epoch 0 step 20 loss 2.371\n"),
        LogChunk(
            seq=2,
            session_id="s1",
            agent="node01",
            text="\x1b[33m[rank3]\x1b[0m warning: <img src=x onerror=alert(1)>\n",
        ),
        LogChunk(seq=3, session_id="s1", agent="node02", text="[rank8] epoch 0 step 20 loss 2.371\n"),
    )
    return Story(job, history, None, events, log, make_points(_NAMES))


@cache
def make_finished_story(now: datetime) -> Story:
    """Return the same job with its advice."""
    story = make_running_story(now)
    job = story.job.model_copy(
        update={"state": JobState.FINISHED, "stage": Stage.DONE, "finished_at": now, "version": 9}
    )
    history = _make_history(job.created_at, rounds=8)
    ended = history.sessions[0].model_copy(
        update={
            "state": SessionState.ENDED,
            "outcome": Outcome.FINISHED,
            "ended_at": now,
            "reason": "Nothing was left to measure.",
        }
    )
    done = JobEvent(seq=6, at=now, kind=EventKind.JOB, sentence="The job has finished: at least +13.9 %.")
    closed = tuple(
        trial
        if trial.outcome
        else trial.model_copy(update={"state": TrialState.CLOSED, "outcome": Outcome.FINISHED})
        for trial in history.trials
    )
    history = history.model_copy(update={"sessions": (ended,), "trials": closed})
    return replace(story, job=job, history=history, advice=make_advice(job.id), events=(*story.events, done))


def make_agents(now: datetime) -> tuple[AgentView, ...]:
    """Return agents in every state."""
    laptop = Node(hostname="laptop", cpu_count=8, memory_bytes=32 * 2**30, python_version="3.12.1")
    places = (
        ("node01", _NODES[0], AgentState.BUSY, 1.0, "sample"),
        ("node02", _NODES[1], AgentState.BUSY, 2.0, "sample"),
        ("laptop", laptop, AgentState.IDLE, 4.0, None),
        ("node09", _NODES[1], AgentState.SILENT, 172_800.0, None),
    )
    return tuple(
        AgentView(
            id=f"agent-{name}", name=name, node=node, state=state, job_id=job_id, session_id="s1" if job_id else None,
            last_seen_at=now - timedelta(seconds=seconds), last_seen_s=seconds,
            flag=make_flag(name) if name == "node02" else None,
        )
        for name, node, state, seconds, job_id in places
    )  # fmt: skip
