"""Run a law on a deliberately wrong variant of its algorithm."""

from __future__ import annotations

import functools

from fedstride.research.verify import law


def laws_of(module):
    """The laws that a module enters, for parametrize."""
    return [check for _, check in law.LAWS if check.__module__ == module.__name__]


def is_kept(check, **variant):
    """True if all measurements keep their bounds; stops at the first that does not."""
    with_variant = functools.wraps(check)(lambda: check(**variant))
    return all(finding.kept for finding in law.run("test", with_variant))
