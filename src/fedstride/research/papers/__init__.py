"""Reproduction of the papers' experiments: `fedstride reproduce`."""

# isort: off
# in the order of the papers
from fedstride.research.papers import toy as toy
from fedstride.research.papers import fedsls as fedsls
from fedstride.research.papers import delta_sgd as delta_sgd
from fedstride.research.papers import delta_sgd_table1 as delta_sgd_table1
from fedstride.research.papers import delta_sgd_more as delta_sgd_more
from fedstride.research.papers import delta_sgd_step as delta_sgd_step
from fedstride.research.papers import synthetic as synthetic
from fedstride.research.papers import fedexp as fedexp
from fedstride.research.papers import fedexp_ablations as fedexp_ablations
from fedstride.research.papers import fedlin as fedlin
from fedstride.research.papers import fedlin_limits as fedlin_limits
from fedstride.research.papers import niid_bench as niid_bench
# isort: on

from fedstride.research.papers.experiment import EXPERIMENTS, Claim, Experiment, Lab, Outcome, Picture, select

__all__ = ["Claim", "EXPERIMENTS", "Experiment", "Lab", "Outcome", "Picture", "select"]
