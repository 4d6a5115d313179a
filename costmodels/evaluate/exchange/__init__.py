"""Collectives: their curves beside measurements that these have not seen."""
