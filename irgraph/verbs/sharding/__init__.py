"""A step, spread over ranks: its batch, and its embedding tables by a plan."""
