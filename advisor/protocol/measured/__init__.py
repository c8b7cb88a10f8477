"""What agents measure and report: trials, races, telemetry, runs."""
