"""A node's description of itself at the roll call, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from flwr.app import RecordDict

from fedstride.core.errors import InvalidInput
from fedstride.data.federation import Found
from fedstride.engine.flower import records

MOST_ABOUT = 2**24  # bytes of a node's description of itself, which contains the names and shapes of all parameters
LONGEST_NAME = 60  # characters of a node's name
CLOCK = 5.0  # seconds by which clocks may differ
LATEST = 1e12  # seconds since 1970
MOST_SAMPLES = 10**9  # of a node: with weights="samples", one that claims more would be the mean


@dataclass(frozen=True)
class About:
    """A node's description of itself."""

    client: int
    samples: int
    found: Found
    kind: str  # shapes and types of an input and a target
    apart: bool  # whether the scales of its input features are far apart
    identity: dict[str, str]
    name: str  # the name that the node gave itself, "" for none
    time: float  # its clock, in seconds since 1970


def read_about(content: RecordDict) -> About:
    """Return what a node says about itself.

    Raises:
        InvalidInput: if it reports a problem, or if the answer is malformed.
    """
    problem = records.problem(content)
    if problem is not None:
        raise InvalidInput(f"client {problem['client']}: {problem['text']}")
    if (size := records.size(content)) > MOST_ABOUT:
        raise InvalidInput(f"it describes itself in {size} bytes; expected at most {MOST_ABOUT}.")
    try:
        facts = cast(dict[str, Any], content.config_records["about"])
        identity = {key: str(value) for key, value in content.config_records["identity"].items()}
        found = records.found_of(str(facts["found"]))
        client, samples = records.client_number(facts), facts["samples"]
        if isinstance(samples, bool) or not isinstance(samples, int) or not 1 <= samples <= MOST_SAMPLES:
            raise InvalidInput(f"it has {records.shown(samples)} samples; expected 1 to {MOST_SAMPLES:g}.")
        apart = facts["scales far apart"] is True
        kind, name = records.shown(facts["kind of samples"]), records.shown(facts["name"])[:LONGEST_NAME]
        if not 0 <= (clock := float(facts["time"])) < LATEST:
            raise ValueError("not a time")
        return About(client, samples, found, kind, apart, identity, name, clock)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise InvalidInput(f"it does not identify itself ({type(error).__name__}).") from error


def number_of(content: RecordDict) -> int | None:
    """Return the client that an unusable node says it is, None if it does not."""
    for name in ("problem", "about"):
        record = content.config_records.get(name)
        number = "" if record is None else str(record.get("client"))
        if number.isdecimal() and len(number) < 10:
            return int(number)
    return None


def skew(theirs: float, sent: float, now: float) -> str | None:
    """Return how a node's clock differs from the server's, which asked for it at `sent` and has the answer at `now`."""
    difference = theirs - (sent if theirs < sent else now if theirs > now else theirs)
    if abs(difference) <= CLOCK:
        return None
    return (
        f"its clock is {abs(difference):.0f} s {'ahead of' if difference > 0 else 'behind'} the server's. Messages and "
        "certificates expire by the clocks of both; synchronise them, for example with NTP."
    )
