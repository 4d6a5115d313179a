"""Several ranks, run in one process."""
