"""Replays measured steps: simulated beside measured, as they were recorded."""
