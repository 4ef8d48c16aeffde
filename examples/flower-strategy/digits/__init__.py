"""Flower's quickstart for PyTorch, on scikit-learn's digits, with a strategy of fedstride."""
