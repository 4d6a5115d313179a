"""Embedding tables whose rows ranks share: their lookups, exchanges and gradients."""
