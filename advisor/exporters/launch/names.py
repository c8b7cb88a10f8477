"""The job's name where schedulers take few characters."""

from advisor.protocol.asked.jobs import Job


def plain_name(job: Job) -> str:
    """Return lower-case letters, digits and single hyphens, starting with a letter; at most 40 of them."""
    kept = "".join(mark if mark.isascii() and mark.isalnum() else "-" for mark in job.spec.name.lower())
    name = "-".join(filter(None, kept.split("-")))[:40].strip("-")
    return name if name[:1].isalpha() else f"training-{name}".rstrip("-")
