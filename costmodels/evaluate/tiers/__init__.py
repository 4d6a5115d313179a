"""Tiers of memory compared with published measurements."""
