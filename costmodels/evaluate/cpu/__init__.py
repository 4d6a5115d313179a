"""Steps and rewrites on the CPU at hand, predicted and measured."""
