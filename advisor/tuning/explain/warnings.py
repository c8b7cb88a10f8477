"""What was seen of the script itself that its owner should know, whatever the verdict."""

from advisor.tuning.history.breakoffs import find_script_failure
from advisor.tuning.history.record import Record
from advisor.tuning.measure.outcomes import count_nonfinite, say_share
from advisor.tuning.stages.undecided import say_failure


def list_warnings(record: Record, *, is_told: bool) -> tuple[str, ...]:
    """Return sentences, the gravest first; `is_told`: the answer itself says why nothing was decided."""
    found = []
    failure = find_script_failure(record)
    if failure is not None and not is_told:
        found.append(say_failure(record, failure))
    counts = count_nonfinite([block.result for block in record.baseline_blocks if block.result])
    if counts[0]:
        found.append(
            f"The script's own loss is not finite in {say_share(counts)} of the baseline's steps: speeds are measured "
            "all the same, and strategies are held against that share. Look for bad samples or too large a learning "
            "rate."
        )
    return tuple(found)
