"""Benchmarks: every published figure can be reproduced with one command."""
