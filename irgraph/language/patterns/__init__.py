"""Patterns: their nodes, and how they are matched against a graph."""
