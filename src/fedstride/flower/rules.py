"""Named strategies: one per recipe, with the recipe's settings as arguments."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

from fedstride.algorithm.recipes import RECIPES
from fedstride.algorithm.registry import arguments_of
from fedstride.algorithm.registry import summary as summary_of
from fedstride.core.errors import InvalidInput, nearest
from fedstride.flower.strategy import Strategy

OF_THE_CLIENTS = ("lr", "schedule")  # settings of a recipe that unchanged clients do not know
OPTIONS = {
    name: parameter
    for name, parameter in inspect.signature(Strategy).parameters.items()
    if name not in ("algorithm", "training")
}


class Rule(Strategy):
    """A strategy for one recipe. Arguments are the settings of the recipe, and those of Strategy."""

    recipe: ClassVar[str]
    unchanged: ClassVar[bool] = False  # whether clients keep their own training loop

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "recipe" not in vars(cls):  # a user's subclass
            return
        make = RECIPES[cls.recipe]
        own, known = cls.settings(), arguments_of(make)
        cls.__signature__ = inspect.Signature([*own.values(), *OPTIONS.values()])  # type: ignore[attr-defined]
        who = "Clients stay as they are" if cls.unchanged else "Clients return fedstride.flower.train(...)"
        lines = [summary_of(make), "", f"{who}. Further arguments are those of Strategy.", ""]
        lines += ["Args:", *(f"    {name}: {known[name]}" for name in own), ""] if own else []
        cls.__doc__ = "\n".join([*lines, "Example:", f'    >>> strategy = {cls.__name__}(checkpoint="checkpoints")'])

    def __init__(self, **given: Any) -> None:
        name, own = type(self).__name__, self.settings()
        for key in given:
            if self.unchanged and key in OF_THE_CLIENTS:
                raise InvalidInput(
                    f"{name}: {key} belongs to the clients, which keep the app's own loop. Set it there; or use "
                    f'Strategy("{self.recipe}({key}=...)"), with fedstride.flower.train(...) in the clients.'
                )
            if key not in own and key not in OPTIONS:
                raise InvalidInput(f"{name}: {key} is not an argument; {nearest(key, [*own, *OPTIONS])}")
        options = {key: value for key, value in given.items() if key not in own}
        algorithm = RECIPES[self.recipe](**{key: value for key, value in given.items() if key in own})
        super().__init__(algorithm, training="app" if self.unchanged else "fedstride", **options)

    @classmethod
    def settings(cls) -> dict[str, inspect.Parameter]:
        """Return the settings of the recipe that are arguments of this strategy."""
        found = inspect.signature(RECIPES[cls.recipe]).parameters
        by_name = {name: p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for name, p in found.items()}
        return {name: p for name, p in by_name.items() if not cls.unchanged or name not in OF_THE_CLIENTS}


class FedAvg(Rule):
    recipe = "fedavg"
    unchanged = True


class FedAvgM(Rule):
    recipe = "fedavgm"
    unchanged = True


class FedAdam(Rule):
    recipe = "fedadam"
    unchanged = True


class FedAdagrad(Rule):
    recipe = "fedadagrad"
    unchanged = True


class FedYogi(Rule):
    recipe = "fedyogi"
    unchanged = True


class FedExP(Rule):
    recipe = "fedexp"
    unchanged = True


class FedExPM(Rule):
    recipe = "fedexpm"
    unchanged = True


class FedDoG(Rule):
    recipe = "feddog"
    unchanged = True


class FedProdigy(Rule):
    recipe = "fedprodigy"
    unchanged = True


class FedDAdapt(Rule):
    recipe = "feddadapt"
    unchanged = True


class FedScheduleFree(Rule):
    recipe = "fedschedulefree"
    unchanged = True


class FedHyper(Rule):
    recipe = "fedhyper"
    unchanged = True


class Auto(Rule):
    recipe = "auto"


class FedSLS(Rule):
    recipe = "fedsls"


class FedExpSLS(Rule):
    recipe = "fedexpsls"


class DeltaSGD(Rule):
    recipe = "delta_sgd"


class FedSPS(Rule):
    recipe = "fedsps"


class FedDecSPS(Rule):
    recipe = "feddecsps"


class FedNGN(Rule):
    recipe = "fedngn"


class FedProx(Rule):
    recipe = "fedprox"


class FedExProx(Rule):
    recipe = "fedexprox"


class FedNova(Rule):
    recipe = "fednova"


class Scaffold(Rule):
    recipe = "scaffold"


class ScaffoldExP(Rule):
    recipe = "scaffold_exp"


class FedLin(Rule):
    recipe = "fedlin"


class FedTrack(Rule):
    recipe = "fedtrack"


class FedDyn(Rule):
    recipe = "feddyn"


class Moon(Rule):
    recipe = "moon"


class Ditto(Rule):
    recipe = "ditto"


class FedSplit(Rule):
    recipe = "fedsplit"


class FedAdamW(Rule):
    recipe = "fedadamw"
