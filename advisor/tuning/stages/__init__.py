"""What a job does one after another: search, trimming and confirmation."""
