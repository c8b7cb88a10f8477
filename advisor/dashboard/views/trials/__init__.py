"""What was tried: the table of trials, one trial, trials side by side, and figures over all of them."""
