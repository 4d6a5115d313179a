"""Sharding of a step over ranks: of its batch, and of its embedding tables and layers by a plan."""
