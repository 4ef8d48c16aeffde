"""Federated data: who holds what."""

from fedstride.data.federation import Federation

__all__ = ["Federation"]
