"""Slow, obvious twins of every algorithm, written from the papers alone. Nothing here imports fedstride."""
