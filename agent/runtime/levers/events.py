"""What the script does inside a step, told to the levers that are on, and to a calibration."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

from ..observe.recorder import multiply_loss
from ..untraced import untraced


class StepListener:
    """Hears nothing unless it says so; what it answers is the script's own way."""

    def before_forward(self, ddp: Any) -> None:
        """Before DDP prepares a training forward of this model."""

    def after_forward(self, ddp: Any) -> None:
        """After that forward."""

    def drop_forward(self) -> None:
        """In place of what follows, where that forward failed: what the script computes next is its own."""

    def convert_output(self, output: Any) -> Any:
        """What the script gets from that forward."""
        return output

    def before_backward(self) -> float:
        """Before the outermost backward pass: what the loss counts in it."""
        return 1.0

    def after_backward(self) -> None:
        """After that pass."""

    def before_step(self) -> None:
        """Before an optimizer's step outside a backward pass."""

    def before_reading(self) -> None:
        """Before gradients are clipped or unscaled."""

    def may_clear(self, owner: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> bool:
        """Whether a zero_grad() of an optimizer or a module is made."""
        return True

    def may_clip(self) -> bool:
        """Whether the script's clipping of gradients is made; otherwise it only learns their norm."""
        return True


class StepEvents:
    """Tells them in order. Where nobody listens the runtime asks for none of it."""

    def __init__(self) -> None:
        self.listeners: List[StepListener] = []
        """The levers that are on, since the last switch."""

    @untraced
    def begin_forward(self, ddp: Any) -> None:
        for each in self.listeners:
            each.before_forward(ddp)

    @untraced
    def end_forward(self, ddp: Any, output: Any) -> Any:
        for each in self.listeners:
            each.after_forward(ddp)
        for each in self.listeners:
            output = each.convert_output(output)
        return output

    @untraced
    def drop_forward(self) -> None:
        """It failed."""
        for each in self.listeners:
            each.drop_forward()

    @untraced
    def multiply_loss(
        self, roots: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]
    ) -> Tuple[Any, Tuple[Any, ...], Dict[str, Any]]:
        """The arguments of the outermost backward that now begins."""
        factor = 1.0
        for each in self.listeners:
            factor *= each.before_backward()
        return (roots, args, kwargs) if factor == 1.0 else multiply_loss(roots, args, kwargs, factor)

    @untraced
    def end_backward(self) -> None:
        for each in self.listeners:
            each.after_backward()

    @untraced
    def before_step(self) -> None:
        for each in self.listeners:
            each.before_step()

    @untraced
    def before_reading(self) -> None:
        for each in self.listeners:
            each.before_reading()

    @untraced
    def may_clear(self, owner: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> bool:
        return all(each.may_clear(owner, args, kwargs) for each in self.listeners)

    def may_clip(self) -> bool:
        return all(each.may_clip() for each in self.listeners)
