"""Tiers of memory: their figures, how long reads wait for them, and what a cache keeps off them."""
