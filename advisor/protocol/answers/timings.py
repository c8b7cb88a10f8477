"""When gradients become ready, and what sending them costs: what the probe timed, for buckets to be cut by."""

from advisor.protocol.base import Message


class Timings(Message):
    """When gradients become ready and what an allreduce between all ranks costs, as the probe measured them."""

    gradient_bytes: tuple[int, ...]
    """Each gradient's, in the order in which backward makes them; of more than 2000, neighbours are joined."""
    ready_s: tuple[float, ...]
    """Seconds from the start of backward until each was ready."""
    alpha_s: float
    """Seconds for an allreduce of any size."""
    beta_s_per_byte: float
    """Seconds for each byte of it."""
    planned_mb: tuple[float, ...] = ()
    """Sizes of the buckets that end earliest by these figures; empty where nothing could be cut."""
