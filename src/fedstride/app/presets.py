"""Tasks that come with fedstride: data, partition, model and training of each."""

from __future__ import annotations

from typing import Any

CNN = {"name": "small_cnn", "options": {"dropout": 0}}  # dropout would keep the clients from running in parallel
IMAGES = {"partition": "dirichlet", "clients": 100, "samples": 500, "normalise": True}
TASKS: dict[str, dict[str, Any]] = {
    "digits": {},
    "breast_cancer": {
        "data": {
            "source": "breast_cancer",
            "partition": "dirichlet_split",
            "clients": 20,
            "alpha": 0.5,
            "normalise": True,
        },
        "model": {"name": "softmax"},
        "training": {"weights": "uniform"},
    },
    "mnist": {"data": {"source": "mnist", **IMAGES}, "model": CNN, "training": {"batch_size": 64}},
    "fashion_mnist": {
        "data": {"source": "fashion_mnist", **IMAGES},
        "model": CNN,
        "training": {"batch_size": 64, "rounds": 150},
    },
    "mnist_writers": {
        "data": {"source": "mnist_writers", "partition": "natural", "clients": 539, "normalise": True},
        "model": CNN,
        "training": {"batch_size": 20, "rounds": 100, "weights": "uniform"},
    },
    "cifar10": {
        "data": {"source": "cifar10", **IMAGES},
        "model": CNN,
        "training": {"batch_size": 64, "rounds": 100},
    },
    "covtype": {
        "data": {
            "source": "covtype",
            "partition": "dirichlet",
            "clients": 100,
            "samples": 1000,
            "alpha": 1.0,
            "normalise": True,
        },
        "model": {"name": "softmax"},
        "training": {"batch_size": 50, "rounds": 100},
    },
    "shakespeare": {
        "data": {"source": "shakespeare", "partition": "natural", "clients": 100},
        "model": {"name": "char_lstm"},
        "training": {"batch_size": 50, "rounds": 50, "local_steps": 20, "weights": "uniform"},
    },
}
