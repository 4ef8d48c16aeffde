"""Hypothesis: few examples, always the same ones, no clock."""

from hypothesis import settings

settings.register_profile("fedstride", deadline=None, derandomize=True, max_examples=30, database=None)
settings.load_profile("fedstride")
