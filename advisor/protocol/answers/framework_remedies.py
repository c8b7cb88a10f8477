"""What a framework's own arguments do about a finding, where its Trainer makes the steps and no line of the script."""

from collections.abc import Mapping, Sequence

from advisor.protocol.measured.results import Place

_STEP = frozenset({"backward_s", "optimizer_s"})
"""Parts that a line which runs whole steps is seen in."""
_TRAINER = {
    "evaluation": "TrainingArguments(…, eval_steps=…, save_steps=…) with larger numbers, or a smaller eval_dataset",
    "own_code": "TrainingArguments(…, logging_steps=50), and callbacks that do less",
    "collectives": "TrainingArguments(…, logging_steps=50): the Trainer gathers from all ranks what it logs",
}
_LIGHTNING = {
    "evaluation": "Trainer(…, val_check_interval=…, limit_val_batches=…) and ModelCheckpoint(every_n_train_steps=…): "
    "less often, on less",
    "own_code": "Trainer(…, log_every_n_steps=50, enable_progress_bar=False), and callbacks that do less",
    "collectives": "self.log(…, sync_dist=False) in training_step, and callbacks that ask no other rank in each step",
}
_REMEDIES: Mapping[str, Mapping[str, str]] = {
    "transformers": _TRAINER,
    "lightning": _LIGHTNING,
    "pytorch_lightning": _LIGHTNING,
}


def advise_by_framework(
    name: str, where: str, places: Sequence[Place], software: Mapping[str, str]
) -> str | None:
    """Return what to write about the finding `name` at the line `where`; None where the line is the script's to change.

    A line in which backward and the optimizer are seen, too, is the one that starts the Trainer.
    """
    framework = next((one for one in _REMEDIES if one in software), None)
    if framework is None:
        return None
    parts = {place.part for place in places if place.site == where}
    if not parts >= _STEP if where else name != "evaluation":
        return None
    return _REMEDIES[framework].get(name)
