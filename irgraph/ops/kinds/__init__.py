"""Declarations by kind of operator, one file a kind: each has ``OPERATORS`` by name."""
