"""The script's training batches, read with other loader settings."""
