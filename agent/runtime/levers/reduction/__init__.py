"""How gradients travel: DDP's reducer, communicators, levels, 16 bits, low rank, and averaging parameters instead."""
