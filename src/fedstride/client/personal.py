"""Personal parameters: entries of a row that stay with their client (personal=); the others are shared.

Arivazhagan, Aggarwal, Singh, Choudhary. Federated learning with personalization layers. 2019 (FedPer).
Collins, Hassani, Mokhtari, Shakkottai. Exploiting shared representations for personalized federated learning. ICML 2021
(FedRep).
Deviations: FedRep trains the shared part for as many local steps as the run says, not for one epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from fedstride.core.errors import InvalidInput, nearest
from fedstride.core.model import Replica
from fedstride.core.rows import Rows, State, Vec, repeat

MEMORY = "personal"  # name of a client's own entries in its memory


@dataclass(frozen=True, eq=False)
class Personal:
    """The split of a row of d entries. The server's row keeps the initial values of personal entries; they never travel."""

    names: tuple[str, ...]  # of the parameters that are personal
    own: Tensor  # indices of their entries
    shared: Tensor  # indices of all other entries
    first: int = 0  # FedRep: steps on the personal entries alone, before those on the shared ones; 0: all together

    def __repr__(self) -> str:
        return f"Personal({', '.join(self.names)}; first={self.first})"

    def memory(self, x: Vec) -> State:
        """Return the memory of a client that never took part: the initial values."""
        return {MEMORY: x[self.own]}

    def put(self, x: Vec, own: Rows) -> Rows:
        """Return x with each client's own entries in their places."""
        rows = repeat(x, len(own))
        rows[:, self.own] = own
        return rows

    def cut(self, V: Tensor) -> Tensor:
        """Return the shared entries of a vector, or of each row."""
        return V.index_select(-1, self.shared)

    def whole(self, v: Tensor, others: Vec | None = None) -> Tensor:
        """Return the vector, or rows, of which these are the shared entries; the others are zero, or those of `others`."""
        d = len(self.own) + len(self.shared)
        full = v.new_zeros(*v.shape[:-1], d) if others is None else others.expand(*v.shape[:-1], d).clone()
        full[..., self.shared] = v
        return full

    def mask(self, like: Vec, own: bool) -> Vec:
        """Return 1 for the personal entries, or for the shared ones, and 0 for the others."""
        found = torch.zeros_like(like)
        found[self.own if own else self.shared] = 1
        return found


def select(patterns: Sequence[str], first: int, replica: Replica) -> Personal | None:
    """Return the split by the names of trainable parameters, None without patterns.

    Raises:
        InvalidInput: a pattern matches nothing, or all parameters would be personal.
    """
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in replica.names):
            known = ", ".join(replica.names[:6]) + (", ..." if len(replica.names) > 6 else "")
            near = nearest(
                pattern.rstrip(".*") + ".*",
                {f"{name.rpartition('.')[0]}.*" for name in replica.names if "." in name} or replica.names,
            )
            raise InvalidInput(
                f"personal: {pattern!r} matches no trainable parameter; {near} The parameters are called {known}."
            )
    names = tuple(n for n in replica.names if any(fnmatchcase(n, pattern) for pattern in patterns))
    if not names:
        return None
    if len(names) == len(replica.names):
        raise InvalidInput(
            f"personal={list(patterns)!r} matches all parameters, so that nothing is shared; expected patterns of a part of "
            'them, as in personal=["head.*"].'
        )
    own = torch.cat([torch.full((n,), name in names) for name, n in zip(replica.names, replica.sizes, strict=True)])
    places = torch.arange(replica.d, device="cpu")
    return Personal(names, places[own].to(replica.device), places[~own].to(replica.device), first)
