"""Which strategies are worth measuring next: the surrogate, its acquisition and the pool it chooses from."""
