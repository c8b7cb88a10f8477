"""The command line `advisor`: results on stdout, progress on stderr, documented exit codes."""


def main() -> int:
    """Run the command that `sys.argv` names; returns its exit code (see `advisor.cli.exits`)."""
    # Imported here so that importing a single module of this package does not build all commands.
    import os
    import sys

    from advisor.cli.program import COMPLETING, build_app, read_completed

    words = read_completed(os.environ) if COMPLETING in os.environ else sys.argv[1:]
    return int(build_app(words)(prog_name="advisor") or 0)
