"""FedLin's laws hold for the library, and each of them is broken by some mistake."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from fedstride import GradientCorrection, TopK
from fedstride.algorithm.recipes import fedavg, fedlin, fednova, fedprox, fedsplit
from fedstride.research.verify import fedlin as laws
from tests.research.verify.breaking import is_kept, laws_of


@pytest.mark.slow
@pytest.mark.parametrize("check", laws_of(laws), ids=lambda check: check.__name__)
def test_the_law_is_kept(check):
    assert is_kept(check)


def times(factor, make=fedlin):
    return lambda lr, **options: make(lr=factor * lr, **options)


def without_correction(**options):
    return replace(fedlin(**options), drift=None)


class Flipped(GradientCorrection):
    def correction(self, broadcast, memory):
        return -super().correction(broadcast, memory)


def flipped_correction(**options):
    return replace(fedlin(**options), drift=Flipped())


def uncompressed(lr, **_):
    return fedlin(lr=lr)


@dataclass(frozen=True)
class Backwards:
    """TOP-k with the sign flipped."""

    k: int

    def compress(self, V, sources):
        return -TopK(self.k).compress(V)

    def bytes(self, d, itemsize):
        return TopK(self.k).bytes(d, itemsize)


def backwards_up(lr, up):
    return fedlin(lr=lr, up=Backwards(up.k))


def backwards_down(lr, down, error_feedback=None):
    return fedlin(lr=lr, down=Backwards(down.k), error_feedback=error_feedback)


MISTAKES = {
    "Thm 9, steps too short": (laws.heterogeneous, {"make": times(0.1)}),
    "Thm 9, no correction": (laws.heterogeneous, {"make": without_correction}),
    "Thm 9, flipped correction": (laws.heterogeneous, {"make": flipped_correction}),
    "Prop 3, steps too long": (laws.identical_clients, {"make": times(3)}),
    "Thm 1, no correction": (laws.unequal_work, {"make": without_correction}),
    "Thm 1, steps too short": (laws.unequal_work, {"make": times(0.1)}),
    "Thm 3, steps too short": (laws.non_convex, {"make": times(0.1)}),
    "Thm 3, flipped correction": (laws.non_convex, {"make": flipped_correction}),
    "Thm 4, steps too long": (laws.noisy_gradients, {"make": times(40)}),
    "Thm 4, no correction": (laws.noisy_gradients, {"make": without_correction}),
    "Thm 5, no correction": (laws.lower_bound, {"make": without_correction}),
    "Thm 5, steps a little too long": (laws.lower_bound, {"make": times(1.001)}),
    "Lemma 14, scaled": (laws.top_k, {"compress": lambda V, k: 2 * TopK(k).compress(V)}),
    "Lemma 14, one too few": (laws.top_k, {"compress": lambda V, k: TopK(max(1, k - 1)).compress(V)}),
    "Thm 6, flipped": (laws.server_top_k, {"make": backwards_down}),
    "Thm 6, steps too short": (laws.server_top_k, {"make": times(0.05)}),
    "Thm 7, flipped": (laws.server_top_k_with_feedback, {"make": backwards_down}),
    "Thm 7, steps too short": (laws.server_top_k_with_feedback, {"make": times(0.01)}),
    "Thm 8, flipped": (laws.client_top_k, {"make": backwards_up}),
    "App. K, nothing compressed": (laws.logistic_regression, {"make": uncompressed}),
    "Prop 1, steps a little too long": (laws.fedavg_and_fedprox, {"make_fedavg": times(1.001, fedavg)}),
    "Prop 1, no proximal term": (laws.fedavg_and_fedprox, {"make_fedprox": lambda lr, mu: fedprox(lr=lr, mu=0.0)}),
    "Prop 2, FedAvg in its place": (laws.fednova_too, {"make": fedavg}),
    "Prop 2, steps a little too long": (laws.fednova_too, {"make": times(1.001, fednova)}),
    "App. J, steps too short": (laws.fedsplit_diverges, {"make": times(0.9, fedsplit)}),
}


@pytest.mark.slow
@pytest.mark.parametrize(("check", "variant"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_breaks_the_law(check, variant):
    assert not is_kept(check, **variant)
