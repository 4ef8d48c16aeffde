"""Executable theory: the laws of the papers, checked by running them. `findings()` checks all of them."""

# isort: off
# the order of the papers: 000, 001, 002, 003, 004, and what holds for all
from fedstride.research.verify import fedsls as fedsls
from fedstride.research.verify import delta_sgd as delta_sgd
from fedstride.research.verify import fedtrack as fedtrack
from fedstride.research.verify import fedexp as fedexp
from fedstride.research.verify import fedlin as fedlin
from fedstride.research.verify import identities as identities
# isort: on

from fedstride.research.verify.law import Finding, findings

__all__ = ["Finding", "findings"]
