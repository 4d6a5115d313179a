"""Tiers of memory: their figures, times of reads, and caches in front of them."""
