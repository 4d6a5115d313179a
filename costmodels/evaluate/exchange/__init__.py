"""Collectives: their curves compared with measurements that were not used for them."""
