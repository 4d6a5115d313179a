"""Trained models of kernel times: weights, inference with numpy alone, and predictors."""
