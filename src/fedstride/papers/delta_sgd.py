"""Experiments of 001."""
