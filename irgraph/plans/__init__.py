"""Plans over several ranks, and what a rank's tensors are of the whole step's."""
