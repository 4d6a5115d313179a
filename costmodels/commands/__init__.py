"""The commands about cost models, one a file, found as those of ``irgraph.cli.commands``."""
