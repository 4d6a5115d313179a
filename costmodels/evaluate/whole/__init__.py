"""Whole programs with published times, and gains of changes to them."""
