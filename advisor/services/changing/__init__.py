"""What people do to a job that is there: pause, continue, prioritise, tidy away."""
