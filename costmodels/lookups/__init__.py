"""Lookups of embedding tables: distributions of indices, lengths of bags, and hits of a cache."""
