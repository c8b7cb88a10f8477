"""What a job carries of its owner's signature, for agents that start nothing else."""

from pydantic import Field

from advisor.protocol.base import Spec
from advisor.protocol.training.workload import Secret

NAMESPACE = "fleet-advisor-job"
"""What a signature is for (`ssh-keygen -Y sign -n`): one that was made for anything else is none here."""


class Signature(Spec):
    """What the owner of a job signed, and the signature."""

    statement: Secret = Field(repr=False)
    """A `Statement` as JSON. It holds the job's environment, so only the agents may read it."""
    signature: str = Field(min_length=1, max_length=20_000)
    """The signature of the statement's very characters, as `ssh-keygen -Y sign` writes it."""
