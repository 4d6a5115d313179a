"""Microbenchmarks: what to measure of each family, and the torch calls that do it."""
