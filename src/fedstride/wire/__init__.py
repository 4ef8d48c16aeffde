"""Communication: compressors, error feedback, streaming and robust aggregation, secure sums, and message sizes."""

from fedstride.wire.compress import Compressor, Quantize, RandomK, TopK
from fedstride.wire.feedback import send
from fedstride.wire.lora import ExactLoRA
from fedstride.wire.mean import Aggregator, Mean, Node, WeightedMean
from fedstride.wire.robust import Aggregation, Median, Robust, TrimmedMean

__all__ = [
    "Aggregation",
    "Aggregator",
    "Compressor",
    "ExactLoRA",
    "Mean",
    "Median",
    "Node",
    "Quantize",
    "RandomK",
    "Robust",
    "TopK",
    "TrimmedMean",
    "WeightedMean",
    "send",
]
