"""Algorithms: what they are made of, what does not go together, and all that have a name."""

from fedstride.algorithm.compose import Algorithm, spelled_out

__all__ = ["Algorithm", "spelled_out"]
