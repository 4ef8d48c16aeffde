"""Federated data: data sets, files, partitions and federations."""

from fedstride.data import partition
from fedstride.data.datasets import from_datasets
from fedstride.data.federation import Federation, Lazy, federate
from fedstride.data.frames import from_frame
from fedstride.data.sources import SOURCES, Source, get, load
from fedstride.data.table import Table

__all__ = [
    "load",
    "get",
    "SOURCES",
    "Source",
    "Table",
    "from_frame",
    "from_datasets",
    "partition",
    "federate",
    "Federation",
    "Lazy",
]
