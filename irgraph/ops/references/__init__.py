"""References of irgraph's own ops that are longer than their declarations; these import torch."""
