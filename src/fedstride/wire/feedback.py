"""Send rows through a compressor, with or without error feedback.

Mitra, Jaafar, Pappas, Hassani. Linear convergence in federated learning. NeurIPS 2021 (FedLin eq. 120 and 142).
Deviations: none; with error feedback a sender's first message is not compressed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedstride.core.rows import Rows, State, Vec
from fedstride.wire.compress import Compressor, plain_bytes


def memory(x: Vec) -> State:
    """Return the initial state of a sender: its accumulated error, and whether it has sent before."""
    return {"residual": torch.zeros_like(x), "sent": x.new_zeros(1)}


def send(
    V: Rows, compressor: Compressor | None, feedback: bool, past: State, sources: Sequence[torch.Generator]
) -> tuple[Rows, State, list[int]]:
    """Send rows through a compressor.

    Args:
        V: rows to send.
        compressor: the compressor, or None.
        feedback: whether to add a sender's accumulated error to its next message (error feedback).
        past: state of the senders, initially that of memory(); not used without feedback.
        sources: one generator per row, for compressors that draw random numbers.

    Returns:
        (received rows, new state of the senders, message size of each row in bytes)

    Example:
        >>> received, state, sizes = fs.wire.send(torch.tensor([[3.0, 1.0, 2.0]]), fs.TopK(1), False, {}, [])
        >>> received, sizes
        (tensor([[3., 0., 0.]]), [8])
    """
    d, item = V.shape[1], V.element_size()
    if compressor is None:
        return V, {}, [plain_bytes(d, item)] * len(V)
    size = compressor.bytes(d, item)
    if not feedback:
        return compressor.compress(V, sources), {}, [size] * len(V)
    first = past["sent"] == 0
    wanted = past["residual"] + V
    sent = torch.where(first, V, compressor.compress(wanted, sources))  # FedLin eq. (120)
    now = {"residual": wanted - sent, "sent": torch.ones_like(past["sent"])}
    return sent, now, [plain_bytes(d, item) if new else size for new in first[:, 0].tolist()]
