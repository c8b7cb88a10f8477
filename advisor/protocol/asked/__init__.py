"""What users ask for: jobs, how they are found, signed and told about."""
