"""What the rest of a step does: kernels, memory, threads, precision, the optimizer, queues."""
