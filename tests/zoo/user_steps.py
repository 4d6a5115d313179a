"""Steps as people write them."""

PROGRAMS = {}
