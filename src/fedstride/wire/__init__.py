"""What crosses the network: compressors, error feedback, the streaming mean, and the bytes of it all."""

from fedstride.wire.compress import Compressor, Quantize, RandomK, TopK
from fedstride.wire.feedback import send
from fedstride.wire.mean import Mean, WeightedMean

__all__ = ["Compressor", "Mean", "Quantize", "RandomK", "TopK", "WeightedMean", "send"]
