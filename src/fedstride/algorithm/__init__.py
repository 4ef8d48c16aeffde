"""Algorithms: composition of parts, compatibility, named recipes, client sampling and privacy."""

from fedstride.algorithm.compose import Algorithm, spelled_out

__all__ = ["Algorithm", "spelled_out"]
