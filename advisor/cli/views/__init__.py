"""What people read in the terminal: pure functions of advice, job and history."""
