"""Tables and files written by commands."""
