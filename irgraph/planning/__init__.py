"""The search for a plan: where embedding tables lie, so that the slowest rank is fast."""
