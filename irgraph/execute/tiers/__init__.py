"""Lookups through a cache: what its ops compute, and what it holds when a step begins."""
