"""Microbenchmarks: the cases to measure of each family, and the torch calls that are timed."""
