"""What users get: advice, gains and files."""
