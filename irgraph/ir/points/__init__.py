"""Sizes at many points: numbers with a value at each point, and prices of calls at each point."""
