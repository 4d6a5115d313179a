"""Expressions: their nodes, kinds, units and values."""
