"""The front ends, one file each: how a kind of file is recognised, and what lowers it."""
