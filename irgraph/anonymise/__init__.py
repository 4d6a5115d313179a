"""Removes the names of a program from traces and models, so that they can be shared."""
