"""The talk with the agent, at step boundaries: hello, then block after block until the agent ends it."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Tuple

import torch.distributed as dist
from torch.distributed import distributed_c10d

from . import beat
from .block import Block, Instruction, Stage, choose_timed_steps, parse_instruction
from .calibration import CalibrationSteps
from .clock import choose_clock
from .control import PROTOCOL, AgentLost
from .exchange import Exchange
from .facts import count_gradient_bytes, gather_baseline, gather_facts, locate
from .levers.bucket_plan import observe_plan
from .levers.lever import RelaunchNeeded, Training
from .levers.registry import Levers
from .link_sweep import LinkSweep
from .memory import read_peak_bytes, reset_peak
from .recorder import StepMarks, measure_steps
from .results import merge_ranks
from .snapshot import TrainingSnapshot
from .trouble import describe_trouble

if TYPE_CHECKING:
    from .runtime import Runtime

HELLO_AFTER_STEPS = 3
"""Whole steps watched before the hello, so that batch size, accumulation and a step's time are known."""
AGENT_TIMEOUT_S = 900.0
"""An instruction may take a while: the server searches, other nodes' agents join."""
PEER_TIMEOUT_S = 180.0
FAILED = 75
"""Exit code when the session cannot go on for a reason outside the script (EX_TEMPFAIL)."""
USUAL_SAMPLE_RATE = 100
"""DDP times every hundredth iteration unless told otherwise (kDDPRuntimeLoggingSampleRate)."""
SAMPLED_ITERATIONS = 11
"""DDP times its first ten iterations whatever the sample rate; on CUDA that synchronises, so they are not timed."""


class Conversation:
    """Every rank passes the same boundaries and takes the same decisions; rank 0 alone speaks with the agent."""

    def __init__(self, runtime: "Runtime") -> None:
        environment = runtime.environment
        self._runtime = runtime
        self._rank = dist.get_rank()
        self._device, self._backend = locate(runtime.list_replicas(), runtime.list_sharded())
        self._clock = choose_clock(self._device)
        runtime.recorder.clock = self._clock
        self._levers = Levers(
            self._rank,
            dist.get_world_size(),
            environment.local_world_size,
            self._device,
            self._clock,
            environment.cold,
            runtime.reading,
        )
        store = distributed_c10d._get_default_store()
        # Torchrun keeps its store over restarts of the ranks: an attempt must not read what the last one left.
        session = f"{environment.session}/{environment.attempt}"
        self._exchange = Exchange(store, session, self._rank, dist.get_world_size(), runtime.write_beat)
        self._watched: List[StepMarks] = []
        self._forwards = 1
        self._block: Optional[Block] = None
        self._snapshot: Optional[TrainingSnapshot] = None
        self._blocks_finished = 0

    # Called by the runtime.

    def begin_forward(self, ddp: Any) -> None:
        self._levers.before_forward(ddp)

    def end_forward(self, ddp: Any, output: Any) -> Any:
        block = self._block
        if block is not None and block.calibration is not None:
            block.calibration.note_forward(ddp)
        self._levers.after_forward(ddp)
        if block is not None and block.stage is Stage.PROFILING and ddp.require_backward_grad_sync:
            block.exposed.setdefault(id(ddp), []).append(read_exposed_s(ddp))
        return self._levers.convert_output(output)

    def before_backward(self) -> float:
        factor = self._levers.before_backward()
        if self._block is not None and self._block.calibration is not None:
            self._block.calibration.begin_backward()
        return factor

    def end_backward(self) -> None:
        if self._block is not None and self._block.calibration is not None:
            self._block.calibration.end_backward()
        self._levers.after_backward()

    def may_clear(self, owner: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> bool:
        return self._levers.may_clear(owner, args, kwargs)

    def pass_boundary(self) -> None:
        """At the first training forward of a step: no reducer is in flight on any rank."""
        runtime, recorder = self._runtime, self._runtime.recorder
        if self._block is not None and self._levers.work_in_steps:
            self._levers.end_step(self._gather_training())
        mark = self._clock.mark()
        forwards = runtime.samples.forwards
        step = recorder.close_step(mark, runtime.samples.close_step())
        if self._block is None:
            runtime.phase = beat.TRAINING
            if step is not None:
                self._watched.append(step)
                self._forwards = max(1, forwards)
            if len(self._watched) == HELLO_AFTER_STEPS:
                self._follow(self._say_hello())
                mark = self._clock.mark()
        elif step is not None and self._advance(self._block, step):
            mark = self._clock.mark()
        recorder.begin_step(mark)

    def finish_script(self) -> None:
        """The script ended by itself, perhaps inside a block: what was timed is sent if it is enough."""
        block = self._block
        steps = self._runtime.watch.training_steps
        done = len(block.timed) if block is not None else 0
        result = None
        if block is not None and done >= block.instruction.min_steps:
            result = self._conclude(block, script_ended=True)
        if self._rank != 0:
            return
        agent = self._runtime.reach_agent()
        if block is not None and result is not None and result["steps"] >= block.instruction.min_steps:
            message = {"kind": "block", "block_id": block.instruction.block_id, "result": result}
            try:
                agent.ask(message, timeout_s=5.0)
            except AgentLost:
                return  # the block was sent; nobody needs the reply any more
        elif self._blocks_finished == 0:
            needed = f"{block.instruction.min_steps} steps" if block is not None else "measured steps"
            agent.send(describe_trouble("too_short", steps=steps, needed=needed))
        else:
            block_id = block.instruction.block_id if block is not None else None
            agent.send(
                {"kind": "script_ended", "block_id": block_id, "steps_done": done, "total_steps": steps}
            )

    # One step at a time.

    def _advance(self, block: Block, step: StepMarks) -> bool:
        """Books the finished step; whether more than booking was done, so that the next step needs a new mark."""
        if block.stage is Stage.TIMING:
            block.book_timed(step)
            if len(block.timed) >= block.timed_steps:
                self._end_timing(block)
            elif block.at_checkpoint:
                self._hold_checkpoint(block)
            else:
                return False
        elif block.stage is Stage.WARMING_UP:
            block.warm.append(step)
            if len(block.warm) < block.warmup_steps:
                return False
            self._agree_on_length(block)
        elif block.stage is Stage.SETTLING:
            block.stage = Stage.TIMING
            self._runtime.phase = beat.TIMING
            self._runtime.recorder.recording = True
            self._levers.begin_timing()
        elif block.stage is Stage.PROFILING:
            block.profiled.append(step)
            if len(block.profiled) <= block.instruction.profile_steps:
                return False
            self._rate_logging(USUAL_SAMPLE_RATE)
            self._begin_calibration(block)
        elif block.calibration is not None:
            if not block.calibration.end_step(step):
                return False
            self._end_calibration(block, block.calibration)
        return True

    def _agree_on_length(self, block: Block) -> None:
        self._clock.settle()
        steps = 0
        if self._rank == 0:
            steps = choose_timed_steps(block.instruction, block.estimate_step_s(self._clock), block.period)
        steps = int(self._exchange.broadcast(steps, "the number of timed steps", PEER_TIMEOUT_S))
        block.plan_timing(steps)
        block.stage = Stage.SETTLING

    def _hold_checkpoint(self, block: Block) -> None:
        """Rank 0 judges by its own steps: ranks that wait for each other take equally long ones."""
        self._clock.settle()
        verdict = block.judge(self._clock) if self._rank == 0 else ""
        verdict = str(self._exchange.broadcast(verdict, "whether timing goes on", PEER_TIMEOUT_S))
        block.pass_checkpoint(verdict)
        if verdict:
            self._end_timing(block)

    def _end_timing(self, block: Block) -> None:
        self._clock.settle()
        replicas = self._runtime.list_replicas()
        block.evidence = self._collect_evidence(block, replicas)
        if block.given_up:
            self._finish_block(block)
            return
        # Local SGD reduces nothing in most steps: its communication is the averaging, which was timed already.
        if replicas and block.instruction.profile_steps > 0 and not self._levers.replaces_reduction:
            self._rate_logging(1)
            block.stage = Stage.PROFILING
            self._runtime.phase = beat.PROFILING
            return
        self._begin_calibration(block)

    def _rate_logging(self, sample_rate: int) -> None:
        for ddp in self._runtime.list_replicas():
            ddp._set_ddp_runtime_logging_sample_rate(sample_rate)

    def _begin_calibration(self, block: Block) -> None:
        """Of DistributedDataParallel models; every other block is over here."""
        replicas = self._runtime.list_replicas()
        if not block.instruction.calibrate or not replicas:
            self._finish_block(block)
            return
        block.calibration = CalibrationSteps(replicas, self._levers.replaces_reduction, self._clock)
        block.stage = Stage.CALIBRATING
        self._runtime.phase = beat.CALIBRATING

    def _end_calibration(self, block: Block, calibration: CalibrationSteps) -> None:
        sweep = LinkSweep(
            self._exchange,
            self._levers.reduction.communicators,
            self._device,
            self._clock,
            self._runtime.environment.local_world_size,
        )
        calibration.measure_links(sweep, sum(map(count_gradient_bytes, self._runtime.list_replicas())))
        self._finish_block(block)

    # Block by block.

    def _say_hello(self) -> Dict[str, Any]:
        runtime = self._runtime
        self._enter(beat.WAITING)
        replicas = runtime.list_replicas()
        training = self._gather_training()
        refusals = self._levers.list_refusals(training)
        observed = self._levers.observe(training)
        if self._rank != 0:
            return {}
        self._clock.settle()
        hint_s = statistics.median(self._clock.measure(step.start, step.end) for step in self._watched)
        samples = int(statistics.median(step.samples for step in self._watched))
        facts = gather_facts(runtime.environment, training, runtime.loader, samples, self._forwards, hint_s)
        baseline = observed
        if replicas:
            plan = runtime.launched_over or observe_plan(max(replicas, key=count_gradient_bytes))
            baseline = {**gather_baseline(plan, runtime.environment.local_world_size), **observed}
        return {
            "kind": "hello",
            "protocol": PROTOCOL,
            "facts": facts,
            "baseline": baseline,
            "refusals": refusals,
        }

    def _follow(self, message: Mapping[str, Any]) -> None:
        """Sends rank 0's message, and carries out the instruction that comes back on every rank."""
        while True:
            self._enter(beat.WAITING)
            reply: Dict[str, Any] = {}
            if self._rank == 0:
                reply = self._ask_agent(message)
            reply = self._exchange.broadcast(reply, "the agent's instruction", AGENT_TIMEOUT_S + 60.0)
            if reply.get("kind") != "measure":
                self._end(reply)
                return
            self._enter(beat.SWITCHING)
            instruction = parse_instruction(reply)
            try:
                self._start_block(instruction)
                return
            except RelaunchNeeded as needed:
                result = {"relaunch_needed": str(needed)}
                message = {"kind": "block", "block_id": instruction.block_id, "result": result}

    def _ask_agent(self, message: Mapping[str, Any]) -> Dict[str, Any]:
        try:
            reply = self._runtime.reach_agent().ask(message, AGENT_TIMEOUT_S)
            if reply.get("kind") in ("measure", "end"):
                return {**reply, "exit_code": 0}
            reason = f"The agent sent an instruction of an unknown kind: {reply.get('kind')!r}."
        except AgentLost as lost:
            reason = str(lost)
        # The other ranks wait for this reply: they must hear the end from here.
        return {"kind": "end", "reason": reason, "exit_code": FAILED}

    def _start_block(self, instruction: Instruction) -> None:
        training = self._gather_training()
        reset_peak(self._device)
        start_s = time.perf_counter()
        self._snapshot = None
        if self._levers.needs_snapshot(instruction.overrides):
            self._snapshot = TrainingSnapshot(training)
        self._levers.switch(instruction.overrides, training)
        self._runtime.recorder.keeps_loss = self._levers.needs_loss
        least = self._levers.least_warm_up
        warmup_steps = max(1, instruction.warmup_steps, min(least, instruction.max_steps))
        if self._device.type == "cuda" and self._levers.reduction.rebuilt:
            warmup_steps = max(warmup_steps, SAMPLED_ITERATIONS)
        self._block = Block(instruction, warmup_steps, self._levers.period, time.perf_counter() - start_s)
        self._enter(beat.COMPILING if self._levers.compiles else beat.WARMING_UP)

    def _finish_block(self, block: Block) -> None:
        result = self._conclude(block, script_ended=False)
        self._blocks_finished += 1
        self._follow({"kind": "block", "block_id": block.instruction.block_id, "result": result})

    def _conclude(self, block: Block, script_ended: bool) -> Optional[Dict[str, Any]]:
        """Puts the model right, brings all ranks' series together; the result on rank 0, None elsewhere."""
        self._runtime.recorder.recording = False
        self._clock.settle()
        replicas = self._runtime.list_replicas()
        payload = block.evidence or self._collect_evidence(block, replicas)
        if block.stage is Stage.PROFILING:
            self._rate_logging(USUAL_SAMPLE_RATE)
        if block.exposed and block.profiled:
            payload["exposed_comm_s"] = self._estimate_exposed_s(block, payload["backward_s"])
        if block.calibration is not None and block.calibration.is_complete:
            payload["calibration"] = block.calibration.describe()
        if not script_ended:
            self._levers.end_block(self._gather_training())
            if self._snapshot is not None:
                self._snapshot.restore()
                self._snapshot = None
        timeout_s = 15.0 if script_ended else PEER_TIMEOUT_S
        payloads = self._exchange.gather(payload, "the results of a block", timeout_s)
        return merge_ranks(payloads, script_ended) if payloads is not None else None

    def _collect_evidence(self, block: Block, replicas: List[Any]) -> Dict[str, Any]:
        evidence = self._levers.prove(self._backend, replicas)
        payload: Dict[str, Any] = measure_steps(block.timed, self._clock)
        boundary_s = self._levers.measure_boundary_s() / max(1, len(block.timed))
        payload.update(
            period=block.period,
            warmup_steps=block.warmup_steps + 1,
            switch_s=block.switch_s,
            given_up=block.given_up,
            exposed_comm_s=boundary_s if self._levers.averages_at_boundaries else None,
            boundary_s=boundary_s,
            peak_memory_bytes=read_peak_bytes(self._device),
            bucket_bytes=self._levers.reduction.list_bucket_bytes(replicas),
            consumed=evidence.consumed,
            not_consumed=evidence.not_consumed,
            no_effect=evidence.no_effect,
        )
        return payload

    def _estimate_exposed_s(self, block: Block, backward_s: List[float]) -> float:
        """The share of backward that was exposed communication in the profiled steps, applied to the timed ones."""
        profiled_s = statistics.median(measure_steps(block.profiled, self._clock)["backward_s"])
        # A model's first reading is of its last timed iteration.
        exposed_s = sum(statistics.median(r[1:]) for r in block.exposed.values() if len(r) > 1)
        share = min(1.0, exposed_s / profiled_s) if profiled_s > 0 else 0.0
        return share * statistics.median(backward_s)

    def _end(self, reply: Mapping[str, Any]) -> None:
        # Rank 0 may host the store: it leaves last.
        self._exchange.gather(True, "the farewell", 10.0)
        self._runtime.end_process(int(reply.get("exit_code", 0)), str(reply.get("reason", "")))

    def _gather_training(self) -> Training:
        runtime = self._runtime
        return Training(
            runtime.list_replicas(),
            runtime.watch.list_optimizers(),
            runtime.precision,
            runtime.recorder.loss if self._levers.needs_loss else None,
            runtime.list_sharded(),
        )

    def _enter(self, phase: int) -> None:
        self._runtime.phase = phase
        self._runtime.write_beat()


def read_exposed_s(ddp: Any) -> float:
    """Communication after the end of backward's computing, in the last iteration that DDP logged."""
    data = ddp._get_ddp_logging_data()
    late = data.get("backward_comm_time_end", 0) - data.get("backward_compute_time_end", 0)
    return max(0.0, late / 1e9)
