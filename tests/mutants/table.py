"""All mutants."""

from __future__ import annotations

from tests.mutants import corners, defaults, experiments, parts, protocol, servers, steps, wire

MUTANTS = [
    *steps.MUTANTS,
    *servers.MUTANTS,
    *parts.MUTANTS,
    *wire.MUTANTS,
    *protocol.MUTANTS,
    *defaults.MUTANTS,
    *experiments.MUTANTS,
    *corners.MUTANTS,
]
