"""Many steps of one structure, timed together."""
