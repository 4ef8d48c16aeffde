"""Training problems for the engine benchmarks. Imports are minimal, because Flower starts a process for every message."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fedstride.algorithm.text import NOTHING
from fedstride.core.files import replace_file
from fedstride.core.message import pack
from fedstride.research.bench.overhead import BATCH, STEPS, cnn
from fedstride.training.rounds import Event

LOSS = "cross_entropy"
SIZES = (120, 75, 90, 60)  # samples per client
PROBLEM = (
    "digits, 4 clients of 120, 75, 90 and 60 samples and other classes each, 3 of them a round, 610 parameters, float64"
)
USUAL = {"cohort": 3, "local_steps": 4, "batch_size": 15, "weights": "samples", "seed": 7}
OTHERWISE: dict[str, dict[str, Any]] = {  # settings for recipes that do not support the usual ones
    "fedtrack": {"batch_size": None},
    "fedsplit": {"cohort": None, "weights": "uniform"},
}
DIGITS = "digits.safetensors"


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 8), nn.Linear(8, 10)

    def features(self, inputs: Tensor) -> Tensor:
        return torch.tanh(self.body(inputs))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.features(inputs))
        return outputs


@dataclass(frozen=True)
class Digits:
    """A recipe on a small real problem."""

    recipe: str
    folder: str  # folder of the data

    @property
    def clients(self) -> int:
        return len(SIZES)

    def arguments(self, rounds: int) -> dict[str, Any]:
        """Return the arguments of fs.train."""
        return {"algorithm": self.recipe, "rounds": rounds, **USUAL, **OTHERWISE.get(self.recipe, {})}

    def model(self) -> nn.Module:
        return _seeded(Small).double()

    def samples(self, client: int) -> tuple[Tensor, Tensor]:
        inputs, labels = (v[:1500] for v in _read(self.folder))
        own = (labels % len(SIZES) == client).nonzero()[: SIZES[client], 0]
        return inputs[own], labels[own]

    def test(self) -> tuple[Tensor, Tensor] | None:
        inputs, labels = _read(self.folder)
        return inputs[1500:], labels[1500:]


@dataclass(frozen=True)
class Square:
    """A linear layer of side x side parameters with one step on one sample, almost no work; side 0 is the CNN."""

    side: int
    clients: int

    def arguments(self, rounds: int) -> dict[str, Any]:
        """Return the arguments of fs.train."""
        work = {"local_steps": 1} if self.side else {"batch_size": BATCH, "epochs": 1}
        return {"algorithm": "fedavg(lr=0.01)", "rounds": rounds, "seed": 0, **work}

    def model(self) -> nn.Module:
        return _seeded(lambda: nn.Linear(self.side, self.side, bias=False)) if self.side else _seeded(cnn)

    def samples(self, client: int) -> tuple[Tensor, Tensor]:
        source = torch.Generator().manual_seed(client)
        if self.side:
            return torch.randn(1, self.side, generator=source), torch.tensor([client % self.side])
        n = BATCH * STEPS
        return torch.randn(n, 1, 28, 28, generator=source), torch.randint(10, (n,), generator=source)

    def test(self) -> tuple[Tensor, Tensor] | None:
        return None


@dataclass
class CaseTiming:
    """The measurements of one case on one engine."""

    case: dict[str, Any]
    seconds: list[float] = field(default_factory=list)  # per round
    floor: list[float] = field(default_factory=list)  # per round of a minimal Flower app, alternating with these
    counted: list[int] = field(default_factory=list)  # bytes of a round, down and up, as in the history
    real: list[float] = field(default_factory=list)  # bytes of the actual messages
    peak: int = 0  # peak memory of the leading process in bytes, up to and including this case


@dataclass
class Models:
    """A callback that keeps the model of every round."""

    found: list[Tensor] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        if event.round:
            self.found.append(event.x)


Case = Digits | Square


def settings(case: Case, rounds: int) -> dict[str, Any]:
    """Return the settings of a case for Flower."""
    given = {**vars(case), "clients": case.clients, **case.arguments(rounds)}
    return {name.replace("_", "-"): NOTHING if value is None else value for name, value in given.items()}


def case_of(settings: dict[str, Any]) -> Case:
    if "recipe" in settings:
        return Digits(settings["recipe"], settings["folder"])
    return Square(settings["side"], settings["clients"])


def keep(path: Path, models: Sequence[Tensor], history: Sequence[Mapping[str, Any]]) -> None:
    """Save the model after every round, and the history."""
    replace_file(path, pack({"x": torch.stack(list(models))}, {"history": list(history)}))


def write_digits(folder: Path) -> None:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    tensors = {"inputs": torch.as_tensor(images / 16, dtype=torch.float64), "labels": torch.as_tensor(labels).long()}
    save_file(tensors, folder / DIGITS)


@cache
def _read(folder: str) -> tuple[Tensor, Tensor]:
    tensors = load_file(Path(folder) / DIGITS)
    return tensors["inputs"], tensors["labels"]


def _seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()
