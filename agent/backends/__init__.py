"""How each framework's training processes are started: one file per backend."""
