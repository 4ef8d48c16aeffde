"""The engine of many processes, and how they speak to each other."""

from fedstride.engine.torchrun.engine import Torchrun, TorchrunClients, launched, number, own_gpu

__all__ = ["Torchrun", "TorchrunClients", "launched", "number", "own_gpu"]
