"""Thresholds of the findings. docs/diagnose.md describes the runs on which they were chosen."""

from __future__ import annotations

ROUNDS = 6  # minimum number of rounds to detect a trend
LATE = 4  # the end of a run: its last third, but at least this number of rounds

# Trend of the loss. Shares are relative to the loss before the first step.
BLOWN = 3.0  # times the first loss: only steps that are too long reach this, batch noise does not
DIVERGED = 10.0  # times the first loss at the end
SLOW = 0.25  # share: a model whose loss fell by less has hardly begun to learn
SETTLED = 0.01  # share: a smaller gain in a third of the rounds counts as none
GAINS = (
    0.08  # relative gain in the last third of the rounds: at this pace, as many rounds again would gain another quarter
)
LOW = 0.2  # share: a settled loss below it has converged, one above it is a plateau
VANISHED = 0.05  # share of the mean update in the first rounds: below it the iterates no longer move
BACK = 0.1  # share of the best loss: a larger rise is not noise
ROUGH = 0.05  # deviation from the trend, relative to the loss: larger is visibly noisy
SMOOTH = 0.05  # deviation from the trend, relative to the fall: only steps that are much too short have less noise

# Comparison with the best prediction that ignores the inputs
SURE = 2.0  # standard deviations: chance alone exceeds this once in forty times
LEARNED = (
    0.05  # share of the constant prediction's loss: a classifier with a smaller gain and no accuracy predicts one class
)
FLAT = 1e-3  # share of the loss: smaller changes are not progress, however small the noise is
SCALES = 100.0  # ratio of root mean squares of features: one step cannot suit curvatures 10,000 times apart

# Cosine of successive moves of the model. In theory short steps give a cosine >= 0 for any noise, and the stationary
# oscillation of steps that are too long gives one down to -0.5.
AHEAD = 0.05  # above it, moves still agree
STRAIGHT = 0.3  # above it, longer steps would be faster
SWINGS = -0.1  # below it, moves undo the previous ones
SWINGS_HARD = -0.3  # below it, only an average of the iterates shows the progress

# Clients. Independent updates of M clients without a common part give (drift / update)^2 = M - 1.
DISAGREE = 0.5  # share of M - 1: above it, most of the clients' updates cancel
CANCEL = 3.0  # times M - 1: more than chance; the model is held between the clients' own minima
SKEW = 0.5  # mean distance of a client's labels from all: 0 is even, an even split of few samples has about 0.2
FEW = 2  # clients per round: too few for a meaningful mean
BEHIND = 0.2  # accuracy of the worst tenth below the median
BEHIND_LOSS = 3.0  # loss of the worst tenth, times the median
LOST = 0.05  # share of clients that did not answer

# Step rules
AT_CAP = 0.99  # share of the cap: longer steps count as being at the cap
TRIALS = 5.0  # forward passes per local step: more cost than the gradient itself
FLOOR = 1e-5  # smaller steps come from a failed line search
MOSTLY = 0.5  # share of the last rounds
CLAMPED = 1e-12  # share of the longest step: shorter Polyak steps were clamped to zero (float64 precision is 2e-16)
EXTRAPOLATES = (
    1.5  # server step: independent updates of ten clients give FedExP 5, and `auto` 1.8 if they are a tenth of all
)
EXPLODES = 10.0  # server step: well-behaved problems in the literature stay below
HIDDEN = 2.0  # factor by which eps reduces the extrapolation

# Compression: relative error of a message; 1 means that nothing is sent
COARSE = 0.5  # without error feedback, a quarter of the energy is lost permanently
COARSE_FED_BACK = 0.95  # with error feedback, the rest arrives ten rounds late
