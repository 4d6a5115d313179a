"""Quantisation of lookups, linear layers and exchanges by ``quantize``."""
