"""Who gets which samples: every function returns one tensor of indices per client, and depends on the seed alone.

Kim et al. Adaptive federated learning with auto-tuned clients. ICLR 2024 (001). Hsu, Qi, Brown. Measuring the
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
    """All samples, dealt out at random; sizes differ by one at most."""
    random = _random("iid", labels, clients, seed)
    return _tensors(np.array_split(random.permutation(len(labels)), clients))


def dirichlet(
    labels: Tensor, clients: int, seed: int, alpha: float, samples: int | Sequence[int] | None = None
) -> Parts:
    """Each client draws its class mix q ~ Dir(alpha p), p the mix of all samples, then its samples from q (001 B.9).

    `samples` for each client (None: as many as all can have). A class that runs out leaves the mix. The entries of p
    average one: each of N even classes has the concentration alpha, as 001 describes its Fig. 8 (alpha = 1: fairly
    diverse clients; 0.01: many with one or two classes) and as `dirichlet_split` means it.
    """
    random = _random("dirichlet", labels, clients, seed)
    positive("dirichlet", alpha=alpha)
    sizes = _sizes(len(labels), clients, samples)
    pools, counts = _by_class("dirichlet", labels, random)
    prior, left, parts = counts / counts.sum(), counts.copy(), []
    for size in sizes:
        q = random.dirichlet(alpha * len(prior) * prior)
        take = np.zeros_like(left)
        # A draw that meets an empty class is drawn again; in which order does not change the law of the counts.
        while missing := size - take.sum():
            mix = np.where(left > take, q, 0)
            mix = mix if mix.sum() > 0 else np.where(left > take, prior, 0)  # the whole mix ran out
            take = np.minimum(take + random.multinomial(missing, mix / mix.sum()), left)
        parts.append(np.concatenate([p[l - t : l] for p, l, t in zip(pools, left, take, strict=True)]))
        left -= take
    return _tensors(parts)


def dirichlet_split(
    labels: Tensor, clients: int, seed: int, alpha: float, min_samples: int = 1, tries: int = 1000
) -> Parts:
    """All samples: those of each class are split over the clients in the proportions of a draw from Dir(alpha 1).

    Drawn again until every client has `min_samples`.
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
        f"dirichlet_split: no draw of {tries} gave each of {clients} clients {min_samples} samples; "
        f"expected a larger alpha than {alpha}, fewer clients, or dirichlet, which fixes the sizes."
    )


def pathological(labels: Tensor, clients: int, seed: int, classes: int) -> Parts:
    """All samples; each client has exactly `classes` classes, each class is shared evenly by those who have it."""
    random = _random("pathological", labels, clients, seed)
    pools, counts = _by_class("pathological", labels, random)
    if not _whole(classes) or not 1 <= classes <= len(pools):
        raise InvalidInput(
            f"pathological: classes={classes!r} per client; expected 1 to {len(pools)}, as the data has."
        )
    if clients * classes < len(pools):
        raise InvalidInput(
            f"pathological: {clients} clients with {classes} of {len(pools)} classes each would lose samples; "
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
    """All samples, sorted by label and cut into clients x `shards` shards; each client gets `shards` of them."""
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
    """n_i drawn evenly from low..high (001 B.3); the samples at random, or by `dirichlet` if alpha is given."""
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
    """One client per group, all its samples, in the groups' order; `clients` of them at random if given."""
    if groups is None:
        raise InvalidInput(
            "natural: this data has no groups; expected a source with natural clients, or another scheme."
        )
    numbers, inverse = np.unique(groups.numpy(), return_inverse=True)
    random = _random("natural", groups, len(numbers) if clients is None else clients, seed)
    if clients is not None and clients > len(numbers):
        raise InvalidInput(
            f"natural: clients={clients}, but the data has {len(numbers)} groups; expected at most those."
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
    """How many samples of each class each client has [clients, classes]."""
    return torch.stack([torch.bincount(labels[part], minlength=classes) for part in parts])


def _random(scheme: str, labels: Tensor, clients: int, seed: int) -> np.random.Generator:
    """Check what all schemes share; the source of random numbers."""
    if not isinstance(labels, Tensor) or labels.dim() != 1:
        got = f"shape {tuple(labels.shape)}" if isinstance(labels, Tensor) else type(labels).__name__
        raise InvalidInput(f"{scheme}: labels: got {got}; expected a tensor with one number per sample.")
    if not _whole(clients) or not 1 <= clients <= len(labels):
        raise InvalidInput(
            f"{scheme}: clients={clients!r} is not possible; expected a whole number from 1 to {len(labels)}, the samples."
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
            f"dirichlet: {clients} clients want {sum(sizes)} samples, but there are {total}; "
            f"expected at most {total // clients} for each."
        )
    return sizes


def _by_class(scheme: str, labels: Tensor, random: np.random.Generator) -> tuple[list[Array], Array]:
    """The indices of each class that is there, shuffled, and how many."""
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
