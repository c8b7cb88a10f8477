"""Sets and measures an unchanged Paddle dynamic-graph script: standard library and the script's own paddle only.

Every `paddle.DataParallel` is built with the strategy's buffer sizes, by the script or by fleet. A step
ends when the optimizer that stepped first has stepped again; every rank appends a JSON line for it to the results file,
and with the first one what Paddle itself says about its groups of gradients. On a GPU the host runs ahead of the
device, so a step's time is right on average only, which is what blocks are made of. Python 3.8 and newer.
"""

import functools
import inspect
import json
import os
import platform
import time
import weakref

_ARGUMENTS = {"fuse_grad_size_in_MB": "comm_buffer_size", "last_comm_group_size_MB": "last_comm_buffer_size"}
"""Knob -> argument of paddle.DataParallel."""
_MB = 1024 * 1024


class Recorder:
    """One rank's steps."""

    def __init__(self, paddle, results_file, changes):
        self._paddle = paddle
        self._results_file, self._changes = results_file, changes
        self._file = None
        self._about = {
            "baseline": {},
            "consumed": {},
            "not_consumed": {},
            "no_effect": {},
            "bucket_bytes": [],
        }
        self._facts = None
        self._first_optimizer = None
        self._stepped_at_s = None
        self._samples = 0.0
        self._forwards = 0
        self.running = []
        """Optimizers whose step has begun: one that is made from another calls that one's."""

    def adjust(self, arguments):
        """Put the strategy into the arguments of a DataParallel; return what the script itself asked for."""
        asked = {knob: arguments[argument] for knob, argument in _ARGUMENTS.items()}
        for knob, argument in _ARGUMENTS.items():
            if knob in self._changes:
                arguments[argument] = self._changes[knob]
        return asked

    def describe(self, model, asked):
        """Note what Paddle made of the arguments; `model` has been built."""
        groups = getattr(model, "group_indices", None)
        if groups is None:
            return  # a single rank communicates nothing
        parameters, sparse = list_reduced(self._paddle, model)
        sizes = [count_bytes(parameters[index] for index in group) for group in reversed(groups)]
        as_asked = self._paddle.base.core.eager_assign_group_by_size(
            parameters,
            sparse,
            [int(asked[knob] * _MB) for knob in ("last_comm_group_size_MB", "fuse_grad_size_in_MB")],
        )
        # A later model's groups come behind an earlier one's; the script's own arguments are the first one's.
        about = self._about
        about["bucket_bytes"] += sizes
        about["baseline"] = about["baseline"] or {knob: float(value) for knob, value in asked.items()}
        for knob, argument in _ARGUMENTS.items():
            if knob not in self._changes:
                continue
            in_force = getattr(model, argument)
            if in_force != int(self._changes[knob] * _MB):
                about["not_consumed"][knob] = f"paddle.DataParallel has {argument} = {in_force} bytes."
                continue
            about["consumed"][knob] = (
                f"paddle.DataParallel's {argument} is {in_force / _MB:g} MB: {len(groups)} groups of gradients, the "
                f"largest of {max(sizes) / _MB:.3g} MB."
            )
            if as_asked == groups:
                about["no_effect"][knob] = (
                    "Paddle groups the gradients as it did with the script's own values."
                )
        self._facts = self._gather_facts(model, parameters, sparse)

    def count_forward(self, inputs):
        """Add the samples of one forward pass."""
        self._forwards += 1
        given = os.environ.get("ADVISOR_SAMPLES_PER_STEP")
        if given:
            self._samples += float(given)
            return
        for value in inputs:
            if isinstance(value, self._paddle.Tensor) and value.ndim:
                self._samples += value.shape[0]
                return

    def end_step(self, optimizer):
        """Take note of an optimizer's step; only the first optimizer's count."""
        if self._facts is None:
            return
        if self._first_optimizer is None or self._first_optimizer() is None:
            self._first_optimizer = weakref.ref(optimizer)
        if self._first_optimizer() is not optimizer:
            return
        now_s = time.perf_counter()
        if self._stepped_at_s is not None:
            rank = self._paddle.distributed.get_rank()
            line = {"rank": rank, "step_time_s": now_s - self._stepped_at_s, "samples": self._samples or 1.0}
            if self._file is None:
                self._file = os.open(self._results_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                if rank == 0:
                    self._facts["batch_size_per_rank"] = self._samples or 1.0
                    self._facts["microbatches_per_step"] = max(1, self._forwards)
                    self._facts["optimizers"] = [type(optimizer).__name__]
                    line.update(self._about, facts=self._facts)
            os.write(self._file, (json.dumps(line) + "\n").encode())
        self._stepped_at_s = now_s
        self._samples, self._forwards = 0.0, 0

    def _gather_facts(self, model, parameters, sparse):
        paddle = self._paddle
        device = paddle.get_device()
        world = paddle.distributed.get_world_size()
        local = int(os.environ.get("PADDLE_LOCAL_SIZE", world))
        layers = [layer for layer in model.sublayers() if layer.parameters(include_sublayers=False)]
        return {
            "backend": paddle.distributed.get_backend().lower(),
            "device": "cuda" if device.startswith("gpu") else "cpu",
            "world_size": world,
            "local_world_size": local,
            "nodes": max(1, world // max(1, local)),
            "gradient_bytes": count_bytes(parameters),
            "gradient_dtype": str(parameters[0].dtype).split(".")[-1],
            "parameter_tensors": len(parameters),
            "layers": len(layers),
            "largest_parameter_bytes": max(count_bytes([parameter]) for parameter in parameters),
            "sparse_gradients": any(sparse),
            "has_batch_norm": any("BatchNorm" in type(layer).__name__ for layer in layers),
            "python_version": platform.python_version(),
            "software": {"paddle": paddle.__version__},
        }


def list_reduced(paddle, model):
    """Return the parameters whose gradients DataParallel reduces, in its own order, and which of them are sparse."""
    parameters, sparse, seen = [], [], set()
    for layer in model.sublayers():
        for _, parameter in layer.named_parameters(include_sublayers=False):
            if parameter is None or id(parameter) in seen:
                continue
            seen.add(id(parameter))
            if parameter.trainable and not getattr(parameter, "no_sync", False):
                parameters.append(parameter)
                sparse.append(isinstance(layer, paddle.nn.Embedding) and bool(layer._sparse))
    return parameters, sparse


def count_bytes(parameters):
    return sum(parameter.size * parameter.element_size() for parameter in parameters)


def arm(paddle):
    """Patch DataParallel and every optimizer of the `paddle` that the script has imported."""
    changes = json.loads(os.environ.get("ADVISOR_STRATEGY") or "{}")
    recorder = Recorder(paddle, os.environ["ADVISOR_RESULTS"], changes)
    patch_model(paddle.DataParallel, recorder)
    for kind in vars(paddle.optimizer).values():
        if isinstance(kind, type) and issubclass(kind, paddle.optimizer.Optimizer):
            for name in ("step", "minimize"):
                if name in vars(kind):
                    patch_optimizer(kind, name, recorder)


def patch_model(kind, recorder):
    build, forward = kind.__init__, kind.forward
    signature = inspect.signature(build)

    @functools.wraps(build)
    def build_adjusted(self, *args, **kwargs):
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        asked = recorder.adjust(bound.arguments)
        build(*bound.args, **bound.kwargs)
        recorder.describe(self, asked)

    @functools.wraps(forward)
    def forward_counted(self, *inputs, **kwargs):
        recorder.count_forward([*inputs, *kwargs.values()])
        return forward(self, *inputs, **kwargs)

    kind.__init__, kind.forward = build_adjusted, forward_counted


def patch_optimizer(kind, name, recorder):
    original = getattr(kind, name)

    @functools.wraps(original)
    def counted(self, *args, **kwargs):
        # An optimizer may call the step of the class that it is made from: that is one step.
        recorder.running.append(self)
        try:
            return original(self, *args, **kwargs)
        finally:
            recorder.running.pop()
            if not recorder.running:
                recorder.end_step(self)

    setattr(kind, name, counted)
