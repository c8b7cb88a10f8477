"""The lever of fuse_elewise_add_act_ops and fuse_bn_act_ops: torch.compile of DDP's inner or a plain model."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sysconfig
import time
import weakref
from typing import Any, Dict, List, Mapping, Optional, Tuple

import torch
import torch.distributed as dist

from ... import private_torch
from ..buckets.bucket_plan import observe_plan
from ..lever import Evidence, Lever, Training, read_switch
from ..script_compilation import OURS, is_compiled_by_script

ADD, NORM = "fuse_elewise_add_act_ops", "fuse_bn_act_ops"
LEAST_TORCH = (2, 3)
"""Torch 2.1.2 hung while it compiled a DDP model, in a bare script too."""
CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
"""Where compiled code is kept, by variables that are read while it compiles."""
STEPS_KEEP_HOOKS = (2, 3)
MOST_VERSIONS = 64
"""Compiled versions kept of one model: one for each bucket size and number of threads that it was tried with."""


class _Inductor:
    """torch.compile's own backend, with a count of what it compiled and how often that ran."""

    def __init__(self) -> None:
        self.graphs = 0
        self.runs = 0
        self.compile_s = 0.0

    def __call__(self, graph: Any, inputs: List[Any]) -> Any:
        compile_graph = private_torch.COMPILE_GRAPH.load()
        start_s = time.perf_counter()
        compiled = compile_graph(graph, inputs)
        self.compile_s += time.perf_counter() - start_s
        self.graphs += 1

        def run(*args: Any) -> Any:
            self.runs += 1
            return compiled(*args)

        return run


class Compilation(Lever):
    """One compilation serves both knobs. Switched off, the model runs as it was written; what was compiled is kept."""

    knobs = (ADD, NORM)
    changes_training = knobs
    serves_plain = True

    def __init__(self, device: torch.device, scratch: Optional[str]) -> None:
        """`scratch` is a folder that goes with the session; None leaves compiled code where torch keeps it."""
        self._device, self._scratch = device, scratch
        self.is_on = False
        self._compiled: "weakref.WeakKeyDictionary[Any, Dict[Any, Tuple[Any, _Inductor]]]" = (
            weakref.WeakKeyDictionary()
        )
        self._in_force: List[Tuple[Any, _Inductor]] = []
        self._usual: List[Tuple[private_torch.Private, Any, Any]] = []
        self._values: Mapping[str, Any] = {}
        self._evidence = Evidence()

    def list_refusals(self, training: Training) -> Dict[str, str]:
        reason = _explain_no_compiler(self._device) or _explain_own_compilation(training)
        if reason is not None:
            return dict.fromkeys(self.knobs, reason)
        if not _has_batch_norm(training):
            return {
                NORM: "The model has no batch norm; fuse_elewise_add_act_ops compiles all there is to fuse."
            }
        return {}

    def observe(self, training: Training) -> Dict[str, Any]:
        return dict.fromkeys(self.knobs, _explain_own_compilation(training) is not None)

    def switch(self, values: Mapping[str, Any], training: Training) -> None:
        self._evidence, self._values = Evidence(), values
        for module, _ in self._in_force:
            module.__dict__.pop(private_torch.COMPILED_CALL.name, None)
        self._in_force = []
        for setting, owner, value in self._usual:
            setting.set(owner, value)
        self._usual = []
        self.is_on = self.starts_slowly = False
        self.least_warm_up = 0
        wanted: Dict[str, bool] = {}
        for knob in values:
            try:
                wanted[knob] = read_switch(values[knob])
            except ValueError as error:
                self._evidence.not_consumed[knob] = f"{knob} was not set: {error}."
        compiles = any(wanted.values())
        for knob in [knob for knob in wanted if not wanted[knob]]:
            if compiles:
                self._evidence.not_consumed[knob] = (
                    "One compilation serves both knobs: this one is on as well."
                )
            else:
                self._evidence.consumed[knob] = "Off, like the baseline."
        if compiles:
            # The first step compiles, the second may compile once more for another batch size.
            self.is_on = self.starts_slowly = True
            self.least_warm_up = 4
            self._configure(training)
            for model, module in zip(training.whole, training.inner):
                self._compile(model, module)

    def _configure(self, training: Training) -> None:
        """What cannot be compiled runs as written, and no compiler processes are left beside the timed steps."""
        if self._scratch:
            for variable, folder in CACHES.items():
                os.environ[variable] = os.path.join(self._scratch, folder)
        settings: List[Tuple[private_torch.Private, Any]] = [
            (private_torch.SUPPRESS_ERRORS, True),
            (private_torch.choose_versions_limit(), MOST_VERSIONS),
            (private_torch.COMPILE_THREADS, 1),
        ]
        if training.replicas:
            # The compiled model is cut where DDP's buckets end, and torch takes the first one's size from here only.
            first_bytes = min(observe_plan(ddp).first_bytes for ddp in training.replicas)
            settings.append((private_torch.FIRST_BUCKET_BYTES, first_bytes))
        for setting, value in settings:
            owner = dist if setting is private_torch.FIRST_BUCKET_BYTES else setting.import_home()
            self._usual.append((setting, owner, setting.of(owner)))
            setting.set(owner, value)

    def _compile(self, model: Any, module: Any) -> None:
        # Compiled code has the number of threads and the cuts at DDP's buckets built in.
        version = (None if module is model else observe_plan(model), torch.get_num_threads())
        versions = self._compiled.setdefault(model, {})
        if version not in versions:
            backend = _Inductor()
            call = _compile_forward if module is model else _compile_call
            versions[version] = call(module, backend), backend
        compiled, backend = versions[version]
        private_torch.COMPILED_CALL.set(module, compiled)
        self._in_force.append((module, backend))

    def describe_in_force(self, chosen: Mapping[str, Any]) -> Any:
        return self.is_on

    def begin_timing(self) -> None:
        for _, backend in self._in_force:
            backend.runs = 0

    def prove(self) -> Evidence:
        for _, backend in self._in_force:
            sentence = (
                f"Compiled graphs: {backend.graphs}, which ran {backend.runs} times in the timed steps; compiling "
                f"their forward took {backend.compile_s:.1f} s."
            )
            found = self._evidence.consumed if backend.runs else self._evidence.not_consumed
            for knob in self._values:
                if knob not in self._evidence.not_consumed:
                    found[knob] = sentence
        return self._evidence


def _compile_call(module: Any, backend: _Inductor) -> Any:
    """The module's call as a function of ours: torch compiles none that begins in its own files, as Sequential's."""

    call_module = private_torch.CALL.of(module)

    def call(*args: Any, **kwargs: Any) -> Any:
        return call_module(*args, **kwargs)

    compiled: Any = torch.compile(call, backend=backend)
    setattr(compiled, OURS, True)
    return compiled


def _compile_forward(module: Any, backend: _Inductor) -> Any:
    """The module's call with its forward compiled: its hooks, ours among them, stay outside."""

    call_module, forward = private_torch.CALL.of(module), module.forward

    def run(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    compiled = torch.compile(run, backend=backend)

    def call(*args: Any, **kwargs: Any) -> Any:
        own = module.__dict__.get("forward")
        module.forward = compiled
        try:
            return call_module(*args, **kwargs)
        finally:
            if own is None:
                module.__dict__.pop("forward", None)
            else:
                module.forward = own

    setattr(call, OURS, True)
    return call


def _has_batch_norm(training: Training) -> bool:
    return any(map(private_torch.is_batch_norm, training.list_modules()))


def _explain_own_compilation(training: Training) -> Optional[str]:
    """Whether the script compiles the model itself."""
    if any(map(is_compiled_by_script, training.whole, training.inner)):
        return "The script compiles the model itself (torch.compile)."
    return None


def read_version(text: str) -> Tuple[int, int]:
    """`2.13.0+cpu` as (2, 13); (0, 0) where it is no version."""
    numbers = re.match(r"(\d+)\.(\d+)", text)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def hides_optimizer_steps() -> bool:
    """Whether torch.compile has removed the hooks of all optimizers' steps, as it does before torch 2.3."""
    return private_torch.is_dynamo_loaded() and read_version(torch.__version__) < STEPS_KEEP_HOOKS


def _explain_no_compiler(device: torch.device) -> Optional[str]:
    """Why torch.compile cannot work here; what can be told without compiling anything."""
    if read_version(torch.__version__) < LEAST_TORCH or not hasattr(torch.nn.Module, "compile"):
        return f"torch {torch.__version__} was seen to hang when it compiles a DDP model: use torch 2.3 or later."
    missing = private_torch.explain_no_compilation()
    if missing is not None:
        return missing
    if not private_torch.IS_SUPPORTED.load()():
        return "torch.compile does not support this version of Python or this platform."
    if device.type == "cuda":
        if torch.cuda.get_device_capability(device)[0] < 7:
            return "torch.compile needs a GPU of compute capability 7.0 or later."
        if importlib.util.find_spec("triton") is None:
            return "torch.compile writes Triton kernels for GPUs, and triton is not installed: pip install triton."
    names = [os.environ.get("CXX") or "g++", os.environ.get("CC") or "gcc", "clang++", "clang", "cc"]
    if not any(shutil.which(name) for name in names):
        return "torch.compile needs a C++ compiler, and there is none in PATH: install g++."
    if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
        return "torch.compile needs Python's headers (Python.h): install the python-dev package."
    return None
