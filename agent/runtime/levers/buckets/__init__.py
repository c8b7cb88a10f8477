"""Which gradients travel together: DDP's reducer and its plans."""
