"""One data set or several: what users give as test sets, or to be evaluated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedstride.core.batch import leaves
from fedstride.core.errors import InvalidInput, nearest
from fedstride.data.clients import Collate
from fedstride.data.federation import Federation, Lazy


def sets_of(data: Any, collate: Collate | None = None) -> tuple[list[str], list[Any]] | None:
    """Return the names (none in a list) and the values of several data sets; None for a single one.

    A dict is one set if it has columns, else sets by name. A list is one set if it holds two columns or single items;
    an item differs from a set in that its parts do not all have one row for each of the same number of samples.
    """
    if isinstance(data, Federation | Lazy):
        return list(data.names), list(data)
    if isinstance(data, Mapping):
        return (
            None
            if not data or any(_is_column(v) for v in data.values())
            else (list(map(str, data)), list(data.values()))
        )
    if not isinstance(data, list) or not data or any(_is_column(v) for v in data):
        return None
    items = [v for v in data if isinstance(v, Mapping | tuple) and (collate is not None or not _is_whole(v))]
    return None if items else ([], data)


def _is_column(value: Any) -> bool:
    return hasattr(value, "dtype") or hasattr(value, "to_numpy")


def _is_whole(value: Any) -> bool:
    """Whether a structure holds many samples: all its parts are arrays with the same first dimension."""
    shapes = [tuple(getattr(leaf, "shape", ())) for leaf in leaves(value)]
    return all(shapes) and len({shape[0] for shape in shapes}) == 1


def in_order(names: Sequence[str], values: list[Any], clients: Federation | Lazy) -> list[Any]:
    """Return as many test sets as there are clients in the order of the clients: by name, if both have names.

    Raises:
        InvalidInput: a name is not that of a client.
    """
    known = clients.names
    if not names or not known:
        return values
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InvalidInput(f"test: there is no client {unknown[0]!r}; {nearest(unknown[0], known)}")
    return [values[names.index(name)] for name in known]
