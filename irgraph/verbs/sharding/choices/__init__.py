"""The ways to run each call on ranks, their costs, and the choice among them."""
