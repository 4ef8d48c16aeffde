"""Partitions: assign the samples of a data set to clients.

Every function returns one tensor of sample indices per client. Its random numbers depend only on the seed.

Kim et al. Adaptive federated learning with auto-tuned clients. ICLR 2024 (Delta-SGD). Hsu, Qi, Brown. Measuring the
effects of non-identical data distribution for federated visual classification. 2019. McMahan et al. Communication-
efficient learning of deep networks from decentralized data. AISTATS 2017 (shards). Yurochkin et al. Bayesian
nonparametric federated learning of neural networks. ICML 2019 (dirichlet_split, the form of flwr-datasets).
Deviations: shards and pathological lose no sample when the numbers do not divide; sizes then differ by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedstride.core.errors import InvalidInput, positive

Parts = list[Tensor]
Array = np.ndarray[Any, Any]


def iid(labels: Tensor, clients: int, seed: int) -> Parts:
    """Assign all samples at random; client sizes differ by at most one.

    Args:
        labels: one label per sample.
        clients: number of clients.
        seed: seed of the random numbers.

    Returns:
        One tensor of indices per client.

    Raises:
        InvalidInput: if an argument is invalid.

    Example:
        >>> parts = fs.data.partition.iid(targets, 4, seed=0)
    """
    random = _random("iid", labels, clients, seed)
    return _tensors(np.array_split(random.permutation(len(labels)), clients))


def dirichlet(
    labels: Tensor, clients: int, seed: int, alpha: float, samples: int | Sequence[int] | None = None
) -> Parts:
    """Draw a class mix q ~ Dir(alpha p) for each client, then its samples from q (Delta-SGD app. B.9).

    p is the class mix of all samples, scaled so that its entries average one. Each of N equally frequent classes thus
    has the concentration alpha, as in Delta-SGD's figure 8 (alpha = 1: fairly diverse clients; 0.01: many clients with
    one or two classes) and in `dirichlet_split`. A class that runs out is removed from the mix.

    Args:
        labels: one class label per sample.
        clients: number of clients.
        seed: seed of the random numbers.
        alpha: concentration; smaller values give more unequal clients.
        samples: samples per client, or one number for each client. None: all samples divided by `clients`.

    Returns:
        One tensor of indices per client; some samples may remain unused.

    Raises:
        InvalidInput: if an argument is invalid, or if there are too few samples.

    Example:
        >>> parts = fs.data.partition.dirichlet(targets, 4, seed=0, alpha=0.1, samples=2)
    """
    random = _random("dirichlet", labels, clients, seed)
    positive("dirichlet", alpha=alpha)
    sizes = _sizes(len(labels), clients, samples)
    pools, counts = _by_class("dirichlet", labels, random)
    prior, left, parts = counts / counts.sum(), counts.copy(), []
    for size in sizes:
        q = random.dirichlet(alpha * len(prior) * prior)
        take = np.zeros_like(left)
        # Draws from an empty class are repeated; the order does not change the distribution of the counts.
        while missing := size - take.sum():
            mix = np.where(left > take, q, 0)
            mix = mix if mix.sum() > 0 else np.where(left > take, prior, 0)  # all classes of the mix are used up
            take = np.minimum(take + random.multinomial(missing, mix / mix.sum()), left)
        parts.append(np.concatenate([p[l - t : l] for p, l, t in zip(pools, left, take, strict=True)]))
        left -= take
    return _tensors(parts)


def dirichlet_split(
    labels: Tensor, clients: int, seed: int, alpha: float, min_samples: int = 1, tries: int = 1000
) -> Parts:
    """Split the samples of each class over the clients in proportions drawn from Dir(alpha 1).

    Args:
        labels: one class label per sample.
        clients: number of clients.
        seed: seed of the random numbers.
        alpha: concentration; smaller values give more unequal clients.
        min_samples: minimum number of samples per client; proportions are redrawn until it is reached.
        tries: maximum number of draws.

    Returns:
        One tensor of indices per client; all samples are used.

    Raises:
        InvalidInput: if an argument is invalid, or if no draw gives every client `min_samples`.

    Example:
        >>> parts = fs.data.partition.dirichlet_split(targets, 2, seed=0, alpha=0.5)
    """
    random = _random("dirichlet_split", labels, clients, seed)
    positive("dirichlet_split", alpha=alpha, tries=tries)
    if not 1 <= min_samples * clients <= len(labels):
        raise InvalidInput(
            f"dirichlet_split: min_samples={min_samples} for {clients} clients is not possible with {len(labels)} samples; "
            f"expected 1 to {len(labels) // clients}."
        )
    pools, counts = _by_class("dirichlet_split", labels, random)
    for _ in range(tries):
        shares = random.dirichlet(np.full(clients, alpha), len(pools)).cumsum(1)[:, :-1]
        cuts = (shares * counts[:, None]).astype(int)
        sizes = np.diff(cuts, axis=1, prepend=0, append=counts[:, None]).sum(0)
        if sizes.min() >= min_samples:
            pieces = [np.split(pool, cut) for pool, cut in zip(pools, cuts, strict=True)]
            return _tensors([np.concatenate(mine) for mine in zip(*pieces, strict=True)])
    raise InvalidInput(
        f"dirichlet_split: none of {tries} draws gave each of {clients} clients {min_samples} samples; "
        f"expected a larger alpha than {alpha}, fewer clients, or dirichlet, which fixes the sizes."
    )


def pathological(labels: Tensor, clients: int, seed: int, classes: int) -> Parts:
    """Give each client exactly `classes` classes; each class is split evenly over its clients.

    Args:
        labels: one class label per sample.
        clients: number of clients.
        seed: seed of the random numbers.
        classes: classes per client.

    Returns:
        One tensor of indices per client; all samples are used.

    Raises:
        InvalidInput: if an argument is invalid, or if the data has too few samples or classes.

    Example:
        >>> parts = fs.data.partition.pathological(torch.arange(12) % 3, 3, seed=0, classes=2)
    """
    random = _random("pathological", labels, clients, seed)
    pools, counts = _by_class("pathological", labels, random)
    if not _whole(classes) or not 1 <= classes <= len(pools):
        raise InvalidInput(
            f"pathological: classes={classes!r} per client; expected 1 to {len(pools)}, the classes of the data."
        )
    if clients * classes < len(pools):
        raise InvalidInput(
            f"pathological: {clients} clients with {classes} of {len(pools)} classes each would not use all samples; "
            f"expected at least {-(-len(pools) // classes)} clients."
        )
    owners: list[list[int]] = [[] for _ in pools]
    for client in range(clients):
        load = np.array([len(o) for o in owners])
        for c in np.lexsort((random.random(len(pools)), load))[:classes]:  # the rarest so far, ties at random
            owners[c].append(client)
    for c, own in enumerate(owners):
        if len(own) > counts[c]:
            raise InvalidInput(
                f"pathological: class number {c} has {counts[c]} samples for {len(own)} clients; expected fewer clients."
            )
    parts: list[list[Array]] = [[] for _ in range(clients)]
    for pool, own in zip(pools, owners, strict=True):
        for client, piece in zip(own, np.array_split(pool, len(own)), strict=True):
            parts[client].append(piece)
    return _tensors([np.concatenate(mine) for mine in parts])


def shards(labels: Tensor, clients: int, seed: int, shards: int = 2) -> Parts:
    """Sort all samples by label, cut them into clients x `shards` shards, and give each client `shards` of them.

    Args:
        labels: one class label per sample.
        clients: number of clients.
        seed: seed of the random numbers.
        shards: shards per client.

    Returns:
        One tensor of indices per client; all samples are used.

    Raises:
        InvalidInput: if an argument is invalid, or if there are too few samples.

    Example:
        >>> parts = fs.data.partition.shards(targets, 4, seed=0, shards=2)
    """
    random = _random("shards", labels, clients, seed)
    if not _whole(shards) or not 1 <= shards * clients <= len(labels):
        raise InvalidInput(
            f"shards: shards={shards!r} for {clients} clients is not possible with {len(labels)} samples; "
            f"expected 1 to {len(labels) // clients}."
        )
    pools, _ = _by_class("shards", labels, random)
    pieces = np.array_split(np.concatenate(pools), clients * shards)
    dealt = random.permutation(len(pieces)).reshape(clients, shards)
    return _tensors([np.concatenate([pieces[i] for i in mine]) for mine in dealt])


def quantity(labels: Tensor, clients: int, seed: int, low: int, high: int, alpha: float | None = None) -> Parts:
    """Draw the size of each client uniformly from low to high (Delta-SGD app. B.3).

    Args:
        labels: one class label per sample.
        clients: number of clients.
        seed: seed of the random numbers.
        low: smallest number of samples per client.
        high: largest number of samples per client.
        alpha: if given, samples are drawn as in `dirichlet`; else at random.

    Returns:
        One tensor of indices per client; some samples may remain unused.

    Raises:
        InvalidInput: if an argument is invalid, or if there are too few samples.

    Example:
        >>> parts = fs.data.partition.quantity(targets, 2, seed=0, low=1, high=4)
    """
    random = _random("quantity", labels, clients, seed)
    if not (_whole(low) and _whole(high) and 1 <= low <= high):
        raise InvalidInput(f"quantity: low={low!r}, high={high!r}; expected whole numbers 1 <= low <= high.")
    if clients * high > len(labels):
        raise InvalidInput(
            f"quantity: {clients} clients with up to {high} samples may need {clients * high}, but there are {len(labels)}; "
            f"expected high <= {len(labels) // clients}."
        )
    sizes = random.integers(low, high, clients, endpoint=True)
    if alpha is not None:
        return dirichlet(labels, clients, seed, alpha, sizes.tolist())
    return _tensors(np.split(random.permutation(len(labels)), sizes.cumsum())[:-1])


def natural(groups: Tensor | None, clients: int | None = None, seed: int = 0) -> Parts:
    """Make one client of each group, with all of its samples, in the order of the groups.

    Args:
        groups: the group of each sample, such as `Table.groups`.
        clients: if given, the number of groups to select at random.
        seed: seed of the selection.

    Returns:
        One tensor of indices per client.

    Raises:
        InvalidInput: if the data has no groups, or fewer than `clients`.

    Example:
        >>> parts = fs.data.partition.natural(torch.tensor([0, 0, 1, 1, 1, 2]), clients=2, seed=0)
    """
    if groups is None:
        raise InvalidInput(
            "natural: this data has no groups; expected a source with natural clients, or another scheme."
        )
    numbers, inverse = np.unique(groups.numpy(), return_inverse=True)
    random = _random("natural", groups, len(numbers) if clients is None else clients, seed)
    if clients is not None and clients > len(numbers):
        raise InvalidInput(
            f"natural: clients={clients}, but the data has {len(numbers)} groups; expected at most {len(numbers)}."
        )
    members = np.split(inverse.argsort(kind="stable"), np.bincount(inverse).cumsum())[:-1]
    if clients is None:
        return _tensors(members)
    chosen = np.sort(random.permutation(len(numbers))[:clients])
    return _tensors([members[i] for i in chosen])


SCHEMES: dict[str, Callable[..., Parts]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "dirichlet_split": dirichlet_split,
    "pathological": pathological,
    "shards": shards,
    "quantity": quantity,
    "natural": natural,
}


def histogram(labels: Tensor, parts: Parts, classes: int) -> Tensor:
    """Count the samples of each class for each client.

    Args:
        labels: one class label per sample.
        parts: one tensor of indices per client.
        classes: number of classes.

    Returns:
        The counts, a tensor [clients, classes].

    Example:
        >>> counts = fs.data.partition.histogram(targets, [torch.arange(4), torch.arange(4, 8)], classes=3)
    """
    return torch.stack([torch.bincount(labels[part], minlength=classes) for part in parts])


def _random(scheme: str, labels: Tensor, clients: int, seed: int) -> np.random.Generator:
    """Check the common arguments of all schemes, and return the generator of random numbers."""
    if not isinstance(labels, Tensor) or labels.dim() != 1:
        got = f"shape {tuple(labels.shape)}" if isinstance(labels, Tensor) else type(labels).__name__
        raise InvalidInput(f"{scheme}: labels: got {got}; expected a tensor with one number per sample.")
    if not _whole(clients) or not 1 <= clients <= len(labels):
        raise InvalidInput(
            f"{scheme}: clients={clients!r} is invalid: expected a whole number from 1 to {len(labels)}, the number of samples."
        )
    if not _whole(seed) or seed < 0:
        raise InvalidInput(f"{scheme}: seed={seed!r} is invalid: expected a whole number >= 0.")
    return np.random.default_rng(seed)


def _sizes(total: int, clients: int, samples: int | Sequence[int] | None) -> list[int]:
    if samples is None:
        samples = total // clients
    sizes = [samples] * clients if isinstance(samples, int) else list(samples)
    if len(sizes) != clients or not all(_whole(s) and s >= 1 for s in sizes):
        raise InvalidInput(f"dirichlet: samples={samples!r}; expected a whole number >= 1, or one for each client.")
    if sum(sizes) > total:
        raise InvalidInput(
            f"dirichlet: {clients} clients need {sum(sizes)} samples, but there are {total}; "
            f"expected at most {total // clients} per client."
        )
    return sizes


def _by_class(scheme: str, labels: Tensor, random: np.random.Generator) -> tuple[list[Array], Array]:
    """Return the shuffled indices of each class that occurs, and their counts."""
    if labels.is_floating_point():
        raise InvalidInput(f"{scheme}: labels are {labels.dtype}; expected classes (int64). Use iid or quantity.")
    _, inverse = np.unique(labels.numpy(), return_inverse=True)
    counts = np.bincount(inverse)
    pools = np.split(inverse.argsort(kind="stable"), counts.cumsum())[:-1]
    return [random.permutation(pool) for pool in pools], counts


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _tensors(parts: Sequence[Array]) -> Parts:
    return [torch.from_numpy(np.ascontiguousarray(part, dtype=np.int64)) for part in parts]
