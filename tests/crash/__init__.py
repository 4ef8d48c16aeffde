"""Runs that are killed at any moment and resumed give the bits of runs that are not: python -m tests.crash."""
