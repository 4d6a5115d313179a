"""Replay of measured steps: simulated next to measured."""
