"""Collectives: how long devices need to exchange data."""
