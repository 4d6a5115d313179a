"""Plans over several ranks, and the layouts of each rank's tensors."""
