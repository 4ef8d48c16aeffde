"""Foundations used by all other packages: rows, models, losses, errors, files."""
