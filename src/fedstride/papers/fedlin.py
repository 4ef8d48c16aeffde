"""Experiments of 004."""
