"""The state and the report of a running script."""
