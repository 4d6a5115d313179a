"""The command line: one file per command; heavy imports are deferred until a command runs."""
