"""Experiments of 003."""
