"""Commands that tell what was found, and what is known."""
