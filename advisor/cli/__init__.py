"""The command line `advisor`: results on stdout, progress on stderr, documented exit codes."""


def main() -> int:
    """Run the command that `sys.argv` names; returns its exit code (see `advisor.cli.exits`)."""
    # Imported here so that importing a single module of this package does not build all commands.
    import sys

    from advisor.cli.program import build_app

    return int(build_app(sys.argv[1:])(prog_name="advisor") or 0)
