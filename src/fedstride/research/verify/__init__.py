"""Checks of the papers' theory: each law is a statement that a run can refute. `measurements()` checks all of them."""

# isort: off
# in the order of the papers (FedSLS, Delta-SGD, FedTrack, FedExP, FedLin), then the identities common to all
from fedstride.research.verify import fedsls as fedsls
from fedstride.research.verify import delta_sgd as delta_sgd
from fedstride.research.verify import fedtrack as fedtrack
from fedstride.research.verify import fedexp as fedexp
from fedstride.research.verify import fedlin as fedlin
from fedstride.research.verify import identities as identities
# isort: on

from fedstride.research.verify.law import Measurement, measurements

__all__ = ["Measurement", "measurements"]
