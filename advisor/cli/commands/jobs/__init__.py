"""Commands about the jobs of a server."""
