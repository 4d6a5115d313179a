"""Replays measured steps: compares simulated with measured times."""
