"""Steps and rewrites on the CPU of this machine, predicted and measured."""
