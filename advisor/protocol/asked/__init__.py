"""What users ask for: jobs, how they are found and signed."""
