"""Stands between the script's own calls and the runtime: what fails in ours is said once, and the script goes on.

The patches and hooks know a `Guard` and no runtime, so that none of them can be without it. An error of the script's
own call, which some signals are given to make, passes through.
"""

from __future__ import annotations

import functools
import signal
import traceback
from typing import Any, Callable, Dict, List, Optional, cast

from . import current

FAILED = 75
"""Exit code when the session cannot go on for a reason outside the script (EX_TEMPFAIL)."""


class Unsafe(RuntimeError):
    """To go on would be to train on wrong gradients without a word: the one thing of ours that may reach a script."""


class OwnCall:
    """A call of the script's own that is made for it: what came of it last."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self._is_made = False
        self._result: Any = None
        self.error: Optional[BaseException] = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._is_made, self._result, self.error = True, None, None
        try:
            self._result = self._call(*args, **kwargs)
        except BaseException as error:
            self.error = error
            raise
        return self._result

    def settle(self, *args: Any, **kwargs: Any) -> Any:
        """What the script would have got: the call is made now where it never was."""
        if not self._is_made:
            return self._call(*args, **kwargs)
        if self.error is not None:
            raise self.error
        return self._result


OTHERWISE: Dict[str, Callable[..., Any]] = {
    "adjust_ddp_arguments": lambda _args, kwargs: kwargs,
    "begin_forward": lambda *_: False,
    "end_forward": lambda _ddp, output: output,
    "checkpoint": lambda function, *_: function,
    "begin_backward": lambda _roots: True,
    "begin_collective": lambda *_: False,
    "multiply_loss": lambda *given: given,
    "may_go_on": lambda _error: False,
    "go_on": lambda: False,
    "may_clear": lambda *_: True,
    "may_clip": lambda: True,
}
"""What the script gets where ours fails; nothing from the signals that are missing here."""
MADE_FOR_IT: Dict[str, Callable[..., Any]] = {
    "split_forward": lambda own, ddp, args, kwargs: own.settle(ddp, *args, **kwargs),
    "start_epoch": lambda own, loader: own.settle(loader),
    "read_batch": lambda own, iterator: own.settle(iterator),
}
"""The signals that make a call for the script, given as the last argument, and how it is made without them."""


class Guard:
    """Every signal of `current.Signals`, told to the runtime. None costs more than a call in between."""

    def __init__(self, runtime: Any) -> None:
        self.runtime = runtime
        """For who looks at it from outside; no patch and no hook may."""
        for name in list_signals():
            told: Callable[..., Any] = getattr(runtime, name)
            own = MADE_FOR_IT.get(name)
            setattr(self, name, self._tell(name, told) if own is None else self._tell_with_call(told, own))

    def fail(self, error: Exception) -> None:
        """Something of ours failed; raises what is not ours."""
        if isinstance(error, Unsafe) or _comes_from_handler(error):
            raise error
        try:
            self.runtime.fail(error)
        except Exception:
            current.set_current(None)

    def _tell(self, name: str, told: Callable[..., Any]) -> Callable[..., Any]:
        otherwise: Callable[..., Any] = OTHERWISE.get(name, _nothing)

        def tell(*args: Any) -> Any:
            try:
                return told(*args)
            except Exception as error:
                self.fail(error)
                return otherwise(*args)

        return tell

    def _tell_with_call(self, told: Callable[..., Any], make: Callable[..., Any]) -> Callable[..., Any]:
        def tell(*args: Any) -> Any:
            own = OwnCall(args[-1])
            try:
                return told(*args[:-1], own)
            except StopIteration:
                raise  # the end of an epoch
            except Exception as error:
                if error is own.error:
                    raise
                self.fail(error)
                return make(own, *args[:-1])
            finally:
                own.error = None  # its traceback holds this frame

        return tell


def stand_before(runtime: Any) -> current.Signals:
    """What the patches and hooks are to know of the runtime."""
    return cast(current.Signals, Guard(runtime))


def describe_failure(error: Exception) -> str:
    told = traceback.format_exception_only(type(error), error)[-1]
    return f"the runtime failed, not the script: {told.splitlines()[0]}"


def list_signals() -> List[str]:
    """The names of all that the script is seen to do."""
    return [name for name in vars(current.Signals) if not name.startswith("_")]


def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` as torch or Python may call it inside the script's own calls; None where it fails."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            guard = current.current_runtime
            if guard is not None:
                cast(Guard, guard).fail(error)
            return None

    return call


def _nothing(*_: Any) -> None:
    pass


def _comes_from_handler(error: BaseException) -> bool:
    """Whether a signal handler of the script's raised it, in the middle of ours."""
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = [getattr(getattr(handler, "__func__", handler), "__code__", None) for handler in handlers]
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False
