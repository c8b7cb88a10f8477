"""How a job changes: what is issued, accepted, given up, blamed and closed. Pure: no I/O, no clock, one place."""
