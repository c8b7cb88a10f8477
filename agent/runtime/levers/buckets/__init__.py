"""Which gradients travel together: the plans of DDP's buckets."""
