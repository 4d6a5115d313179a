"""Sizes at many points: numbers with many values, and what calls cost at each."""
