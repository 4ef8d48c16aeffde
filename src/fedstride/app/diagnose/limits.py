"""From which figure on something is said. docs/diagnose.md tells the runs that these were chosen on."""

from __future__ import annotations

ROUNDS = 6  # fewer rounds have no trend
LATE = 4  # rounds, or a third of the run: what counts as its end

# The course of the loss. A share is one of the loss before the first step.
BLOWN = 3.0  # times the first loss: no batch noise does that, only steps that are too long
DIVERGED = 10.0  # times the first loss at the end
SLOW = 0.25  # a share: who has not come as far as this has not begun to learn
SETTLED = 0.01  # a share: a third of the rounds that gains less changes nothing
GAINS = 0.08  # of the present loss in the last third: a run that goes on as long gains another quarter
LOW = 0.2  # a share: a settled loss below it is taken for the end, one above it for a plateau
VANISHED = 0.05  # the mean update against its first rounds: below it the iterates stand still
BACK = 0.1  # of the best loss: a rise that is not noise
ROUGH = 0.05  # deviation from the trend, of the loss: what a reader of the curve calls noisy
SMOOTH = 0.05  # deviation from the trend, of the fall: only steps much too short leave so little noise

# Whether anything was learned, against the best prediction that ignores the inputs
SURE = 2.0  # standard deviations: chance alone goes as far once in forty times
LEARNED = 0.05  # of the constant prediction's loss: a classifier that gains less and no accuracy predicts one class
FLAT = 1e-3  # of the loss: smaller changes do not count as progress, however little noise there is
SCALES = 100.0  # between root mean squares of features: one step cannot suit curvatures 10,000 times apart

# Successive moves of the model. In theory a short step gives a cosine >= 0, whatever the noise, and the stationary
# swing of steps that are too long one down to -0.5.
AHEAD = 0.05  # above it, moves still agree
STRAIGHT = 0.3  # above it, longer steps would be quicker
SWINGS = -0.1  # below it, moves take back what the last ones did
SWINGS_HARD = -0.3  # below it, only an average of the iterates shows the progress

# Clients. Independent updates of M clients without a common part give (drift / update)^2 = M - 1.
DISAGREE = 0.5  # of M - 1: most of what clients do cancels
CANCEL = 3.0  # times M - 1: more than chance; the clients' own minima hold the model between them
SKEW = 0.5  # mean distance of a client's labels from all: 0 is even, an even split of few samples has about 0.2
FEW = 2  # clients in a round: their mean is hardly one
BEHIND = 0.2  # accuracy of the worst tenth below the median
BEHIND_LOSS = 3.0  # loss of the worst tenth, times the median
LOST = 0.05  # share of clients that did not answer

# Step rules
AT_CAP = 0.99  # of the cap
TRIALS = 5.0  # forward passes per local step: more cost than the gradient itself
FLOOR = 1e-5  # steps below it are those of a line search that failed
MOSTLY = 0.5  # share of the last rounds
CLAMPED = 1e-12  # of the longest step: Polyak's step was cut to zero; float64 itself has 2e-16
EXTRAPOLATES = (
    1.5  # server step: independent updates of ten clients give FedExP 5, and `auto` 1.8 if they are a tenth of all
)
EXPLODES = 10.0  # server step: bounded problems in the literature stay below
HIDDEN = 2.0  # the extrapolation that eps hides

# Compression: relative error of a message; 1 is nothing sent
COARSE = 0.5  # without error feedback a quarter of the energy is lost for good
COARSE_FED_BACK = 0.95  # with it the rest comes ten rounds late
