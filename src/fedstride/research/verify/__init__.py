"""Checks of the papers' theory: each law is a statement that a run can refute. `measurements()` checks all of them."""

# isort: off
# in the order of the papers (FedSLS, Delta-SGD, FedTrack, FedExP, FedLin), then the rules and identities common to all
from fedstride.research.verify import fedsls as fedsls
from fedstride.research.verify import fedsls_more as fedsls_more
from fedstride.research.verify import delta_sgd as delta_sgd
from fedstride.research.verify import fedtrack as fedtrack
from fedstride.research.verify import fedexp as fedexp
from fedstride.research.verify import fedlin as fedlin
from fedstride.research.verify import fedlin_more as fedlin_more
from fedstride.research.verify import identities as identities
from fedstride.research.verify import clients as clients
from fedstride.research.verify import objectives as objectives
from fedstride.research.verify import drift as drift
from fedstride.research.verify import servers as servers
from fedstride.research.verify import auto as auto
from fedstride.research.verify import protocol as protocol
# isort: on

from fedstride.research.verify.law import Measurement, measurements

__all__ = ["Measurement", "measurements"]
