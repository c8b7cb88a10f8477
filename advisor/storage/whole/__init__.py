"""The database as a whole: what is counted, what must hold, what is taken away."""
