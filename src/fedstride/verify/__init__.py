"""Executable theory: the laws of the papers, checked by running them. `findings()` checks all of them."""

# isort: off
# the order of the papers: 000, 001, 002, 003, 004, and what holds for all
from fedstride.verify import fedsls as fedsls
from fedstride.verify import delta_sgd as delta_sgd
from fedstride.verify import fedtrack as fedtrack
from fedstride.verify import fedexp as fedexp
from fedstride.verify import fedlin as fedlin
from fedstride.verify import identities as identities
# isort: on

from fedstride.verify.law import Finding, findings

__all__ = ["Finding", "findings"]
