"""Algorithms: composition of parts, compatibility, named recipes, client sampling and privacy."""

from fedstride.algorithm.compose import Algorithm

__all__ = ["Algorithm"]
