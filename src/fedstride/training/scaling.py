"""The exchange before the first round: the statistics of the clients' inputs, for normalise=True and "scale"."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch

from fedstride.client.exchange import MOMENTS
from fedstride.core.errors import TooFew
from fedstride.core.normalise import scaling_of
from fedstride.engine import BEFORE, Order
from fedstride.engine.admission import LENGTH
from fedstride.training.limits import limit_among
from fedstride.training.retry import counted
from fedstride.training.setup import Setup
from fedstride.training.state import TrainingState, run_of


def measure_inputs(setup: Setup, state: TrainingState) -> TrainingState:
    """Ask every client for sums over its inputs, and return the state with the means and deviations of all inputs.

    Raises:
        TooFew: less than a quorum of the clients sent usable sums, in all attempts.
    """
    guard, cohort, sent = setup.guard, [(client, 1) for client in range(len(setup.task.clients))], 0
    least = guard.least(len(cohort))
    device = torch.device("cpu") if state.x.device.type == "mps" else state.x.device  # mps has no float64
    nothing = torch.empty(0, dtype=torch.float64, device=device)
    limits: dict[str, float] = {}
    for call in range(guard.retries + 2):  # one more, for the limit
        order = Order(MOMENTS, nothing, state.stats[:0], {}, BEFORE, cohort, limits, call=call)
        reply = setup.watch.exchange(setup.clients, order)
        sent += reply.bytes_up
        answered = [client for client, _ in cohort if client not in reply.lost]
        reasons = Counter(reply.lost.values())
        if not limits and (limit := limit_among(guard, reply.metrics.get(LENGTH + MOMENTS))) is not None:
            limits[MOMENTS] = limit
        elif len(answered) >= least:
            samples = float(reply.fields[MOMENTS][0]) * reply.weight
            known = sum(setup.sizes[client] for client in answered)
            if abs(samples - known) < 0.5:
                scaling = scaling_of(reply.fields[MOMENTS], state.x.dtype, setup.task.normalise).to(state.x.device)
                return replace(state, scaling=scaling, unbilled=sent)
            reasons[f"sums over {samples:g} samples instead of {known}"] += 1  # a damaged message
    raise TooFew(
        f"normalise={setup.task.normalise!r}: {len(answered)} of {len(cohort)} clients sent the statistics of their inputs in the last of "
        f"{call + 1} attempts ({counted(reasons)}), but quorum={guard.quorum!r} requires {least}, none of them damaged. "
        "Continue later, or with a smaller guard=fs.Guard(quorum=...).",
        run_of(setup, state),
        0,
        list(reply.lost),
    )
