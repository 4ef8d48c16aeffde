"""The tasks of `fedstride bench painless`: in three groups, each small enough for runs of a few seconds.

The first group was used to design `auto`; the second was not, and shows what to expect of it on other tasks. The third
has models, losses, splits and schedules that users have and papers do not.
"""

from __future__ import annotations

from sklearn.datasets import load_diabetes
from torch import nn

from fedstride.models import CharLSTM, CharMLP
from fedstride.research.bench import task_parts as parts
from fedstride.research.bench.task_parts import CNN, LowRank, Transformer, normalised_cnn, tanh_mlp
from fedstride.research.bench.tasks import (
    LOOKED,
    UNSEEN,
    USERS,
    add,
    alike,
    by_role,
    by_target,
    classes,
    linear,
    mixed,
    mlp,
)
from fedstride.research.bench.tasks import TASKS as TASKS

FASHION, MNIST, CIFAR, COVTYPE, PLAYS = "fashion_mnist", "mnist", "cifar10", "covtype", "shakespeare"
CHARACTERS = 80  # size of LEAF's alphabet

add(LOOKED, "digits", "digits, MLP, 2 classes a client", "digits", mlp(64, (50,), 10), classes(2, 50), batch_size=10)
add(LOOKED, "fashion-linear", "Fashion-MNIST, linear, alpha 0.1", FASHION, linear(784, 10), mixed(0.1), rounds=60)
add(LOOKED, "mnist-mlp", "MNIST, MLP, alpha 1", MNIST, mlp(784, (100,), 10), mixed(1.0))
add(
    *(LOOKED, "covtype-mlp", "covtype, MLP, alpha 0.1", COVTYPE, mlp(54, (64,), 7), mixed(0.1, samples=500)),
    batch_size=50,
)
add(
    *(LOOKED, "cifar-cnn", "CIFAR-10, CNN, alpha 10", CIFAR, lambda: CNN(3, 16), mixed(10.0)),
    batch_size=50,
    pooled=True,
)
add(
    *(LOOKED, "few", "Fashion-MNIST, MLP, 2 % of clients a round", FASHION, mlp(784, (50,), 10)),
    *(mixed(0.3, 200, 100),),
    rounds=60,
    cohort=4,
)
add(LOOKED, "one-class", "MNIST, MLP, 1 class a client", MNIST, mlp(784, (50,), 10), classes(1, 100, 100))
add(LOOKED, "noisy", "MNIST, MLP, 20 % wrong labels", MNIST, mlp(784, (100,), 10), mixed(1.0, 50), wrong=0.2)
add(
    *(LOOKED, "group-norm", "Fashion-MNIST, CNN with GroupNorm, alpha 1", FASHION),
    *(lambda: normalised_cnn(1, lambda n: nn.GroupNorm(2, n)), mixed(1.0, 50)),
)
add(
    *(LOOKED, "post-norm", "counting tokens, post-norm transformer", parts.generated(parts.counting, 1600)),
    *(lambda: Transformer(True, 12, 12, 2), alike(10)),
    rounds=30,
    cohort=None,
)
add(
    *(LOOKED, "regression", "generated, MLP, squared error", parts.generated(parts.ridges, 2000)),
    *(mlp(10, (32,), 1), alike(20)),
    loss="mse",
    cohort=5,
)
add(
    *(LOOKED, "nll", "generated, MLP, Gaussian likelihood", parts.generated(parts.ridges, 2000)),
    *(mlp(10, (32,), 2), alike(20)),
    loss=parts.gaussian_nll,
)
add(
    *(LOOKED, "low-rank", "MNIST, low-rank factors, alpha 1", MNIST, lambda: LowRank(784, 64, 10, 4)),
    *(mixed(1.0, 50),),
)
add(
    *(LOOKED, "imbalance", "covtype, MLP, one class of 6 %", parts.source(COVTYPE, positive=2)),
    *(mlp(54, (32,), 2), mixed(0.3, 50)),
    source=COVTYPE,
)
add(
    *(LOOKED, "covtype-linear", "covtype, linear, alpha 0.3", COVTYPE, linear(54, 7), mixed(0.3, samples=500)),
    batch_size=50,
    rounds=60,
)
add(
    *(LOOKED, "shakespeare", "Shakespeare by role, MLP on 6 characters", parts.windows(6)),
    *(lambda: CharMLP((6,), CHARACTERS, 6, 8, 64), by_role(60, 300)),
    source=PLAYS,
    rounds=60,
)
add(
    *(LOOKED, "digits-cnn", "digits, CNN, alpha 0.3", "digits", lambda: CNN(1, 8, 8, 32), mixed(0.3, 40, 30)),
    batch_size=10,
)
add(LOOKED, "mnist-0.05", "MNIST, MLP, alpha 0.05", MNIST, mlp(784, (50,), 10), mixed(0.05), rounds=60)
add(LOOKED, "digits-linear", "digits, linear, alpha 0.1", "digits", linear(64, 10), mixed(0.1, 40, 30), batch_size=10)

add(
    *(UNSEEN, "hastie", "Hastie's 10 normal inputs, MLP, alpha 1", parts.generated(parts.hastie, 3000)),
    *(mlp(10, (32,), 2), mixed(1.0, 30, 80)),
)
add(
    *(UNSEEN, "digits-deep", "digits, 3 hidden layers, alpha 1", "digits", mlp(64, (32, 32, 32), 10)),
    *(mixed(1.0, 30, 40),),
    cohort=6,
    batch_size=10,
)
add(
    *(UNSEEN, "fashion-all", "Fashion-MNIST, linear, alpha 0.3, all take part", FASHION, linear(784, 10)),
    *(mixed(0.3, 20, 100),),
    cohort=None,
)
add(
    *(UNSEEN, "fashion-two", "Fashion-MNIST, 2 layers, 2 classes a client", FASHION, mlp(784, (40, 40), 10)),
    *(classes(2, 60, 100),),
    rounds=60,
)
add(
    *(UNSEEN, "fashion-cnn", "Fashion-MNIST, CNN, alpha 10", FASHION, lambda: CNN(1, 14, 4, 24)),
    *(mixed(10.0, 60, 100),),
    batch_size=25,
    pooled=True,
)
add(
    *(UNSEEN, "mnist-three", "MNIST, MLP, 3 steps a round", MNIST, mlp(784, (40,), 10), mixed(0.5, 80, 100)),
    local_steps=3,
    batch_size=30,
)
add(
    *(UNSEEN, "mnist-two-cnn", "MNIST, CNN, 2 classes a client", MNIST, lambda: CNN(1, 14, 4, 24), classes(2, 60, 100)),
    batch_size=25,
    pooled=True,
)
add(
    *(UNSEEN, "mnist-tanh", "MNIST, 2 tanh layers, alpha 0.1", MNIST, lambda: tanh_mlp(784, 40, 10)),
    *(mixed(0.1, 60, 100),),
)
add(
    *(UNSEEN, "cifar-linear", "CIFAR-10, linear, alpha 0.5", CIFAR, linear(768, 10), mixed(0.5, 80, 150)),
    pooled=True,
)
add(
    *(UNSEEN, "cifar-deep", "CIFAR-10, 2 layers, alpha 1", CIFAR, mlp(768, (48, 48), 10), mixed(1.0, 60, 150)),
    pooled=True,
    epochs=2,
)
add(
    *(UNSEEN, "covtype-two", "covtype, MLP, 2 classes a client", COVTYPE, mlp(54, (48,), 7), classes(2, 60, 200)),
)
add(
    *(UNSEEN, "covtype-noisy", "covtype, MLP, alpha 0.5, 10 % wrong labels", COVTYPE, mlp(54, (48,), 7)),
    *(mixed(0.5, 60, 200),),
    wrong=0.1,
)
add(
    *(UNSEEN, "plays", "Shakespeare by role, MLP on 10 characters", parts.windows(10)),
    *(lambda: CharMLP((10,), CHARACTERS, 10, 6, 48), by_role(80, 150)),
    source=PLAYS,
    cohort=8,
)

add(
    *(USERS, "transformer-post", "most frequent token, post-norm transformer", parts.generated(parts.majority, 2000)),
    *(lambda: Transformer(True, 6, 10, 3), alike(20)),
    cohort=5,
)
add(
    *(USERS, "transformer-pre", "most frequent token, pre-norm transformer", parts.generated(parts.majority, 2000)),
    *(lambda: Transformer(False, 6, 10, 3), mixed(1.0, 20, 100)),
    cohort=5,
)
add(
    *(USERS, "lstm", "Shakespeare by role, LSTM on 20 characters", parts.windows(20)),
    *(lambda: CharLSTM((20,), CHARACTERS, 8, 48, 1), by_role(40, 100)),
    source=PLAYS,
)
add(
    *(USERS, "raw-table", "age, income, ..., raw table, MLP", parts.generated(parts.people, 4000)),
    *(mlp(10, (32,), 2), mixed(0.5, 40, 80)),
    normalise=True,
)
add(
    *(USERS, "diabetes", "diabetes, raw table, MLP, squared error"),
    *(parts.halves(load_diabetes, standardise=False, unit=100, scaled=False), mlp(10, (16,), 1), by_target(10)),
    loss="mse",
    cohort=5,
    batch_size=10,
    normalise=True,
)
add(
    *(USERS, "friedman", "Friedman's function, 2 layers, squared error", parts.generated(parts.friedman, 3000)),
    *(mlp(10, (32, 32), 1), by_target(30)),
    loss="mse",
)
add(
    *(USERS, "gaussian", "waves, uneven noise, Gaussian likelihood", parts.generated(parts.waves, 3000)),
    *(mlp(4, (32, 32), 2), alike(30)),
    loss=parts.gaussian_nll,
)
add(
    *(
        USERS,
        "one-digit",
        "MNIST, MLP, one digit against the rest",
        parts.source(MNIST, positive=8),
        mlp(784, (50,), 2),
    ),
    *(mixed(0.3),),
    source=MNIST,
)
add(
    *(USERS, "wrong-labels", "Fashion-MNIST, MLP, 20 % wrong labels", FASHION, mlp(784, (50,), 10), mixed(0.5)),
    wrong=0.2,
)
add(
    *(USERS, "single-class", "Fashion-MNIST, linear, 1 class a client", FASHION, linear(784, 10), classes(1, 60, 100)),
    rounds=60,
)
add(
    *(USERS, "factors", "Fashion-MNIST, low-rank factors, alpha 0.5", FASHION, lambda: LowRank(784, 100, 10, 8)),
    *(mixed(0.5, 60),),
)
add(
    *(USERS, "batch-norm", "CIFAR-10, CNN with BatchNorm, alpha 1", CIFAR),
    *(lambda: normalised_cnn(3, nn.BatchNorm2d, 8), mixed(1.0, 50)),
    batch_size=40,
    pooled=True,
)
add(
    *(USERS, "two-per-cent", "MNIST, 2 layers, 2 % of clients a round", MNIST, mlp(784, (40, 40), 10)),
    *(mixed(0.3, 150, 100),),
    cohort=3,
    rounds=60,
)
add(
    *(USERS, "ten-epochs", "covtype, MLP, 10 epochs a round", COVTYPE, mlp(54, (32,), 7), mixed(0.5, 60, 100)),
    epochs=10,
)
add(
    *(USERS, "one-step", "Fashion-MNIST, MLP, 1 step a round", FASHION, mlp(784, (50,), 10), mixed(0.3, 60, 100)),
    local_steps=1,
    batch_size=100,
    rounds=60,
)
