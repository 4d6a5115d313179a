"""Templates: the ops that a statement makes, and what would be lost by making them."""
