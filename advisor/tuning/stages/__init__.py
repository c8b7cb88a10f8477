"""What a job does one after another: search, trimming, confirmation, and what several gangs do side by side."""
