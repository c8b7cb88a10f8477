"""The advisor for programs that speak MCP: each tool is a verb of the command line, run in a process of its own."""
