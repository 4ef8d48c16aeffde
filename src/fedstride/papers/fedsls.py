"""Experiments of 000."""
