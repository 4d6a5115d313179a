"""Rules that every graph must obey, by their subject; ``verify`` applies them."""
