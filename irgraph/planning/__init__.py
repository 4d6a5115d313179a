"""Search for a plan: a placement of embedding tables that makes the slowest rank fast."""
