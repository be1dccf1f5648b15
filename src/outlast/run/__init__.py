"""The launcher: one job on this machine, from the command line to the exit code."""
