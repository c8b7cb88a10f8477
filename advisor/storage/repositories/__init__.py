"""One class for each kind of record: its statements, and nothing else."""
