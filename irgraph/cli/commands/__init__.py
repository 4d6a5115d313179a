"""Commands, one per file; see ``irgraph.cli.discovery`` for the required content of a file."""
