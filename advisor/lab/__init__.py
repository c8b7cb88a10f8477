"""A lab: races under one budget of errors, and the ledger that they stand in."""
