"""What clients remember from round to round, beside their data."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedstride.rows import State, Vec


class Store:
    """State of those who took part; everybody else's is fresh. Changes are staged until they are committed."""

    def __init__(self, fresh: Callable[[Vec], State]) -> None:
        self.fresh = fresh
        self.kept: dict[int, State] = {}
        self.staged: dict[int, State] = {}

    def rows(self, clients: Sequence[int], x: Vec) -> State:
        """The state of some clients, one row each; who never took part starts fresh from x."""
        states = [self.kept.get(c) or self.fresh(x) for c in clients]
        return {name: torch.stack([s[name] for s in states]) for name in states[0]}

    def stage(self, clients: Sequence[int], rows: State) -> None:
        for i, client in enumerate(clients):
            self.staged[client] = {name: v[i].clone() for name, v in rows.items()}

    def commit(self) -> None:
        for client, state in self.staged.items():
            if state:
                self.kept[client] = state
            else:
                self.kept.pop(client, None)
        self.staged.clear()

    def state(self) -> dict[str, Tensor]:
        return {f"{client}/{name}": v for client, s in sorted(self.kept.items()) for name, v in s.items()}

    def restore(self, state: dict[str, Tensor], place: Callable[[Tensor], Tensor]) -> None:
        self.kept.clear()
        for key, v in state.items():
            client, name = key.split("/", 1)
            self.kept.setdefault(int(client), {})[name] = place(v)
