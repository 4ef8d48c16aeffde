"""A node's description of itself, which the server asks for when the node connects: checked, and compared with others."""

from __future__ import annotations

from collections.abc import Mapping
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
PACKAGES = {"fedstride": "fedstride[flower]", "flwr": "flwr"}  # whose versions must be the server's
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

    @property
    def common(self) -> tuple[object, ...]:
        """What all clients must have in common."""
        return self.kind, self.found.moving, self.found.random, self.identity.get("parameters")


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


def who(about: About, node: int) -> str:
    """Return a client's number, the name that its node gave itself, and the node, for messages."""
    return f"client {about.client} ({f'{about.name}, ' if about.name else ''}node {node})"


def mismatch(about: About, node: int, expected: Mapping[str, str]) -> str | None:
    """Return how a node's identity differs from the expected one, None if it does not."""
    for name, value in expected.items():
        theirs = about.identity.get(name)
        if theirs != value and name in PACKAGES:
            return (
                f"{who(about, node)} has {name} {_short(theirs, 30)}, and the server has {value}. On that node, run: pip install "
                f"'{PACKAGES[name]}=={value}' and start it again."
            )
        if theirs != value:
            return (
                f"{who(about, node)}: different {name} from the server's: {_short(theirs)} instead of {_short(value)}. Use the "
                "same code and the same versions on the server and on all nodes."
            )
    return None


def difference(about: About, node: int, other: About) -> str:
    """Describe what a client does not have in common with another one."""
    this = who(about, node)
    if about.kind != other.kind:
        return f"{this} has samples of {about.kind}, client {other.client} of {other.kind}; expected the same."
    if about.identity.get("parameters") != other.identity.get("parameters"):
        theirs, own = (_short(one.identity.get("parameters")) for one in (about, other))
        return f"{this}: different parameters from those of client {other.client}: {theirs} instead of {own}."
    return f"{this}: its model has other buffers or other randomness than that of client {other.client}."


def _short(text: object, most: int = 300) -> str:
    shown = records.shown(text)
    return shown if len(shown) <= most else f"{shown[:most]}..."
