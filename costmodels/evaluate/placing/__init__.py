"""Tiers of memory beside what was published of them."""
