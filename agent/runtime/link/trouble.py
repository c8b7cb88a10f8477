"""The sentences for everything that makes a script impossible to measure: what happened, why, what to do."""

from __future__ import annotations

from typing import Dict

SENTENCES: Dict[str, str] = {
    "no_ddp": (
        "The script {when} without building a DistributedDataParallel model: its ranks exchange by calls of its own "
        "({calls} of rank 0 since its first optimizer step), which the runtime leaves as they are. Wrap the model in "
        "torch.nn.parallel.DistributedDataParallel, or shard it with fully_shard; or tune the whole program from "
        "outside: --kind command with settings among its arguments. advisor diagnose tells where its steps' time goes."
    ),
    "alone": (
        "The script {when} without building a DistributedDataParallel model, and no exchange between its ranks was "
        "seen: each of them trains alone. {remedy}"
    ),
    "no_torch": (
        "The script ended without importing torch, and the runtime steers PyTorch only. Tune a program of another "
        "framework from outside: --kind command with settings among its arguments."
    ),
    "no_group": (
        "The script trains without a process group ({steps} optimizer steps {when}): each of its processes trains "
        "alone, and does the same. Start one (python script.py), or train a model that is wrapped in "
        "DistributedDataParallel after torch.distributed.init_process_group()."
    ),
    "own_groups": (
        "The script trains over process groups of its own, without a default one (torchft does so): the ranks have no "
        "common store in which to agree on a setting, so the advisor leaves this training as it is. Call "
        "torch.distributed.init_process_group() before the model is wrapped in DistributedDataParallel."
    ),
    "own_engine": (
        "The script trains through {engine}, which exchanges gradients by itself: the runtime steers torch's "
        "DistributedDataParallel, fully_shard and DeepSpeed's engine up to ZeRO's stage 2. Train through one of these "
        "for the trials, or tune the whole program from outside: --kind command with settings among its arguments. "
        "advisor diagnose tells where its steps' time goes."
    ),
    "spawns_own_ranks": (
        "The script starts its own training processes ({call}), which the advisor cannot reach. "
        "Let it in through their environment (--injection environment), or start one process per device with torchrun."
    ),
    "joins_alone": (
        "Each of the {started} ranks joins a process group of one rank: the script asks something else than RANK and "
        "WORLD_SIZE which rank it is. MPI answers so in trials, whose ranks torch's launcher starts and not mpirun. "
        "Ask RANK and WORLD_SIZE first, as under torchrun; or measure the whole mpirun on one machine, from outside: "
        "--kind command -- bash -c 'exec mpirun …'."
    ),
    "no_module": (
        "The script {when} ({steps} optimizer steps), and no torch.nn.Module that holds its parameters was called: "
        "where a step begins cannot be told. Put the parameters into a module and call that; or tune the whole program "
        "from outside: --kind command with settings among its arguments."
    ),
    "compiled_steps": (
        "The script compiles with torch.compile, and torch {version} then removes the hooks of every optimizer's step: "
        "in {forwards} training forwards none was seen, so steps cannot be told apart. Use torch 2.3 or later, or call "
        "fleet_advisor.end_step() after each update."
    ),
    "cuda_graph": (
        "The script records its training step as a CUDA graph, whose replays call neither the model nor the optimizer: "
        "nothing can be timed or switched in them. Tune without the graph, and record it under the advised strategy."
    ),
    "private_torch": (
        "The advisor cannot measure with this torch: {why} Train with one of these, or use a newer release of the "
        "advisor."
    ),
    "eval_mode": (
        "In {steps} optimizer steps no training forward of the DistributedDataParallel model was called: one in eval "
        "mode, or the module inside it, is taken to be evaluated, and one that replicate() makes is never called. Call "
        "model.train(), and .eval() only of layers that are to be frozen; and call the wrapped model itself."
    ),
    "made_anew": (
        "The script makes other models and optimizers every few steps, {steps} optimizer steps so far: before it is "
        "known which of them closes a training step, they are gone. Train each of them longer, or call "
        "fleet_advisor.end_step() after each update."
    ),
    "pipeline": (
        "The model is a stage of a pipeline (torch.distributed.pipelining), whose forward waits for what the stage "
        "before it sends: there is no moment between two steps at which all ranks could meet and switch a setting. "
        "Tune the whole program from outside: --kind command with settings among its arguments."
    ),
    "joins": (
        "The script trains in a join context, in which ranks may run out of data one by one, so that no step is left "
        "at which all ranks could switch a setting. Give every rank the same number of batches (drop_last=True in its "
        "sampler) and train without the context."
    ),
    "too_short": (
        "The script ended after {steps} training steps, before the first block of {needed} could be timed. "
        "Let it run longer: more steps or epochs, or a larger data set."
    ),
    "fsdp": (
        "The model is sharded by {kind}, but in {steps} optimizer steps no forward of its outermost sharded module was "
        "called, so steps cannot be told apart. Call that module itself in the training loop: not a method of it, and "
        "not a compiled copy."
    ),
    "never_steps": (
        "The model is wrapped in DistributedDataParallel, but no step of a torch.optim optimizer was seen in "
        "{forwards} training forwards, so steps cannot be told apart. "
        "Update the weights through a torch.optim.Optimizer."
    ),
}

SENTENCES["outside_group"] = SENTENCES["no_group"]
"""From a process that is no rank: it counts only where there is none."""


def describe_trouble(code: str, **facts: object) -> Dict[str, object]:
    """The message for the agent."""
    return {"kind": "trouble", "code": code, "sentence": SENTENCES[code].format(**facts)}
