"""Predict and transform PyTorch training steps without running them."""
