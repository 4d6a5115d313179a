"""What ``quantize`` makes of lookups and of linear layers."""
