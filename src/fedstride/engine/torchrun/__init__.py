"""The torchrun engine: one run on many processes."""

from fedstride.engine.torchrun.engine import Torchrun, TorchrunClients, launched, number, own_gpu

__all__ = ["Torchrun", "TorchrunClients", "launched", "number", "own_gpu"]
