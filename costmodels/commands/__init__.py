"""Commands about cost models, one per file, discovered as the ones of ``irgraph.cli.commands``."""
