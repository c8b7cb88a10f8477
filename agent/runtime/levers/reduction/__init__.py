"""How gradients travel: communicators, levels, 16 bits, low rank, and averaging parameters instead."""
