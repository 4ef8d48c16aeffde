"""FedJAX's federated averaging, with the models in haiku."""

# mypy: ignore-errors
# Runs in an environment of its own, where fedjax is installed.

from __future__ import annotations

import functools
import importlib.metadata
import math
import sys

import fedjax
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from serving import Stopwatch, read

jax.tree_map = jax.tree_util.tree_map  # fedjax uses the old name
jax.config.update("jax_enable_x64", True)  # arrays keep the type they have


def network(model: str, classes: int):
    if model != "cnn":
        return hk.Linear(classes, with_bias=model == "softmax")
    pool = hk.MaxPool((1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    convolve = functools.partial(hk.Conv2D, kernel_shape=5, padding="VALID")
    convolutions = [convolve(32), jax.nn.relu, pool, convolve(64), jax.nn.relu, pool]
    channels_last = functools.partial(jnp.moveaxis, source=1, destination=-1)  # faster; PyTorch flattens channels first
    channels_first = functools.partial(jnp.moveaxis, source=-1, destination=1)
    dense = [hk.Flatten(), hk.Linear(512), jax.nn.relu, hk.Linear(classes)]
    return hk.Sequential([channels_last, *convolutions, channels_first, *dense])


def from_torch(x: np.ndarray, shapes) -> dict:
    """Convert weights, then biases: PyTorch stores outputs first (OI, OIHW), haiku last (IO, HWIO)."""
    params, at = {}, 0
    for layer, names in shapes.items():
        params[layer] = {}
        for name in sorted(names, reverse=True):
            to = names[name].shape
            part = x[at : (at := at + math.prod(to))]
            w = part.reshape(to if name == "b" else (*to[:-3:-1], *to[:-2]))
            params[layer][name] = jnp.asarray(w if name == "b" else w.transpose(*range(2, w.ndim), 1, 0))
    return params


def to_torch(params) -> np.ndarray:
    layers = [(np.asarray(layer[name]), name) for layer in params.values() for name in sorted(layer, reverse=True)]
    return np.concatenate([(w if n == "b" else w.transpose(-1, -2, *range(w.ndim - 2))).ravel() for w, n in layers])


def main(folder: str) -> None:
    pace = Stopwatch()
    work, arrays = read(folder)
    X, y, order = arrays["X"].astype(work["dtype"]), arrays["y"], arrays["order"]
    net = hk.without_apply_rng(hk.transform(lambda inputs: network(work["model"], work["classes"])(inputs)))

    def loss(params, batch, rng):
        output = net.apply(params, batch["x"])
        if work["loss"] == "mse":
            return jnp.mean((output - batch["y"]) ** 2)
        return -jnp.mean(jax.nn.log_softmax(output)[jnp.arange(len(output)), batch["y"]])

    full = work["batch"] is None
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(work["lr"]),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(
            batch_size=X.shape[1] if full else work["batch"], num_epochs=work["steps"] if full else 1, skip_shuffle=True
        ),
    )
    shapes = jax.eval_shape(net.init, jax.random.PRNGKey(0), X[0][:1])
    now = [algorithm.init(from_torch(arrays["x"].astype(work["dtype"]), shapes))]
    keys = jax.random.split(jax.random.PRNGKey(0), len(X))
    pace(lambda: to_torch(now[0].params))
    for r in range(work["rounds"]):
        clients = []
        for i, key in enumerate(keys):
            index = slice(None) if full else order[r, i].ravel()  # batches are taken from the front
            clients.append((i, fedjax.ClientDataset({"x": X[i][index], "y": y[i][index]}), key))
        now[0], _ = algorithm.apply(now[0], clients)
        jax.block_until_ready(now[0].params)
        pace(lambda: to_torch(now[0].params))
    pace.reply(jax=jax.__version__, version=importlib.metadata.version("fedjax"))


if __name__ == "__main__":
    main(sys.argv[1])
