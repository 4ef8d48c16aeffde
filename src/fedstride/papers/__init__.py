"""The experiments of the five papers, repeated: `fedstride reproduce`."""

# isort: off
# the order of the papers
from fedstride.papers import toy as toy
from fedstride.papers import fedsls as fedsls
from fedstride.papers import delta_sgd as delta_sgd
from fedstride.papers import delta_sgd_more as delta_sgd_more
from fedstride.papers import delta_sgd_step as delta_sgd_step
from fedstride.papers import synthetic as synthetic
from fedstride.papers import fedexp as fedexp
from fedstride.papers import fedlin as fedlin
# isort: on

from fedstride.papers.experiment import EXPERIMENTS, Claim, Experiment, Lab, Outcome, Picture, select

__all__ = ["Claim", "EXPERIMENTS", "Experiment", "Lab", "Outcome", "Picture", "select"]
