"""What to try next and what it proved: pure functions, no input or output, no clock of their own."""
