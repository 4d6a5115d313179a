"""Microbenchmarks: the same sweep on any torch device, and device sheets from measurements."""
