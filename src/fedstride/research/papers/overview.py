"""Overview of the records: one line per experiment, and the runs that are still to be done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedstride.research.papers.experiment import NOT_RUN, SCALES

Record = dict[str, Any]
PLACE = "Delta-SGD's place: "
FINDINGS = {  # experiment: the paper's finding, the claim whose figures are shown ("": the first one that was run), their name
    "fedsls-fig1": ("line search and extrapolation together beat either alone", "final F, in order", ""),
    "fedsls-table1": ("FedExpSLS has the lowest training loss", "Shakespeare: FedExpSLS", "Shakespeare"),
    "fedsls-table2": ("FedExpSLS has the highest accuracy", "Shakespeare: FedExpSLS", "Shakespeare, %"),
    "fedsls-fig4": ("the search soon needs about one trial per step", "", "CIFAR-10, trials per step"),
    "fedsls-fig5": ("accuracy falls and trials grow with c", "", "accuracy by c"),
    "delta-sgd-table1": (
        "Delta-SGD is at or near the best of eight on nine tasks, tuned on one",
        "number of the",
        "columns where it is within 0.5 points of the best",
    ),
    "delta-sgd-figs1-3": (
        "Delta-SGD keeps its rate-free lead where the others' rates do not fit",
        "",
        "mean distance to the best, points",
    ),
    "delta-sgd-table2b": ("Delta-SGD is the best with FedProx on the most unequal CIFAR-10", "", ""),
    "delta-sgd-table4": ("Delta-SGD is the best with Adam at the server", "", "MNIST"),
    "delta-sgd-table5": ("Delta-SGD is the best with MOON", "", ""),
    "delta-sgd-table6": ("Delta-SGD is at or near the best with FedProx", "", "MNIST"),
    "delta-sgd-B1": ("delta hardly matters", "", "MNIST, delta = 0.01, 0.1, 1"),
    "delta-sgd-B2": ("more local epochs are slightly faster", "", "mean accuracy for 1, 2, 3 epochs"),
    "delta-sgd-B3": ("Delta-SGD is near the best with clients of unequal size", "", ""),
    "delta-sgd-B7": (
        "Delta-SGD has the best mean and a small deviation over seeds",
        "the larger of the two",
        "largest distance to the best, points",
    ),
    "delta-sgd-fig7": ("both conditions of the step are necessary", "", "steps decided by each"),
    "fedexp-eq12": (
        "F oscillates while the distance to the minimiser falls",
        "F at the mean",
        "F at the mean of two iterates against the last",
    ),
    "fedexp-synthetic": (
        "FedExP is orders of magnitude ahead of tuned rivals",
        "loss after 200",
        "loss after 200 rounds",
    ),
    "fedexp-table1": ("FedExP needs the fewest rounds, 1.4 to 2 times fewer than FedAvg", "", "rounds on CIFAR-10"),
    "fedexp-fig1": ("no pair of tuned steps beats FedExP's own server step", "FedExP, which", ""),
    "fedexp-fig6": ("the mean of two iterates helps FedExP and not FedAvg", "FedExP: the mean", ""),
    "fedexp-fig7": ("FedExP's server step is at times much longer than the best constant one", "", "CIFAR-10"),
    "fedexp-table4": ("FedExP works for a range of eps", "MNIST by writer", "MNIST by writer, % by eps"),
    "fedexp-AppF": ("extrapolation with momentum (FedExP-M) is the fastest", "", "rounds to the target"),
    "fedexp-scaffold-exp": ("extrapolation makes SCAFFOLD the best", "", "CIFAR-10, %"),
    "fedlin-E": ("the step of FedLin must be shorter than 1/H", "eta >= 1/H", "with longer steps"),
    "fedlin-J": ("FedSplit with odd numbers of inner steps diverges", "", ""),
    "fedlin-K": (
        "sparse gradients: exact at the server, a floor at the clients",
        "f - f* with sparse",
        "f - f* at the server against at the clients",
    ),
    "fedlin-L": (
        "noise gives a floor that grows with its variance",
        "the floor",
        "floors for variances 1e-5, 1e-3, 0.1",
    ),
    "niid-bench": (
        "the best of FedAvg, SCAFFOLD, FedProx and FedNova, to be reached by auto without tuning",
        "auto, untuned",
        "rows where it does",
    ),
}


@dataclass(frozen=True)
class Planned:
    """A run that is worth its time, with an estimate in hours of one core."""

    what: str
    name: str
    options: str
    hours: str
    claims: str = ""  # claims of the record that show it is done; the record alone if empty

    @property
    def command(self) -> str:
        return f"fedstride reproduce {self.name} {self.options}"


RATES = "--rates SGD=0.1,SGDM=0.1,Adam=0.001,Adagrad=0.01"
PLANNED = [
    *(
        Planned(
            f"Delta-SGD table 1, {name}, α = {alpha}, at the paper's scale, 8 optimisers",
            "delta-sgd-table1",
            f"--scale paper --tasks {task}-{alpha} {RATES}",
            hours,
            f"{PLACE}{name}, α = {alpha}",
        )
        for name, task, hours in (("MNIST", "mnist", "1.2"), ("Fashion-MNIST", "fashion_mnist", "2.5"))
        for alpha in ("0.1", "1", "0.01")
    ),
    *(
        Planned(
            f"Delta-SGD table {number}, MNIST and Fashion-MNIST, at the paper's scale",
            f"delta-sgd-table{number}",
            f"--scale paper --tasks mnist,fashion_mnist {RATES}",
            "3 to 4.5",
        )
        for number in (4, 6)
    ),
    Planned("NIID-Bench, all rows, one seed", "niid-bench", "--scale paper", "10 to 25", "CIFAR-10, 3 labels"),
    Planned("FedExP figure 6 at the paper's scale", "fedexp-fig6", "--scale paper", "3"),
    Planned(
        "FedExP table 1, MNIST by writer for EMNIST, with a CNN",
        "fedexp-table1",
        "--scale medium --tasks emnist",
        "3",
        "MNIST by writer for EMNIST",
    ),
    Planned(
        "FedExP table 1, CIFAR-10 with McMahan's CNN",
        "fedexp-table1",
        "--scale medium --tasks cifar10",
        "about 60",
        "CIFAR-10: FedExP",
    ),
    Planned(
        "FedSLS tables 1 and 2 with McMahan's CNN, searched", "fedsls-table2", "--scale medium --seeds 5", "hundreds"
    ),
    Planned(
        "Delta-SGD table 1, CIFAR-10 with ResNet-18", "delta-sgd-table1", "--scale paper", "thousands", f"{PLACE}CIFAR"
    ),
]


def overview(records: Sequence[Record]) -> list[list[str]]:
    """Return one row per experiment, at the largest scale that was run."""
    rows = [["experiment", "claimed", "seen", "scale", "seeds", "verdicts"]]
    largest: dict[str, Record] = {}
    for found in sorted(records, key=lambda found: SCALES.index(found["scale"])):
        largest[found["name"]] = found
    for name, (claimed, key, label) in FINDINGS.items():
        if r := largest.get(name):
            run = [c for c in r["claims"] if c["verdict"] != NOT_RUN]
            shown = next((c for c in run if c["what"].startswith(key)), run[0] if run else {"ours": "nothing yet"})
            figures = shown["ours"].partition("; margin")[0]
            seen = f"{label}: {figures}" if label else figures
            rows.append([name, claimed, seen, r["scale"], str(r["seeds"]), _verdicts(run)])
    return rows


def _verdicts(claims: Sequence[dict[str, str]]) -> str:
    """Return the number of claims by verdict, the commonest first."""
    return (
        ", ".join(f"{verdict} ({n})" for verdict, n in Counter(c["verdict"] for c in claims).most_common()) or NOT_RUN
    )


def waiting(records: Sequence[Record]) -> list[list[str]]:
    """Return the planned runs that no record shows yet."""
    rows = [["not run for lack of time", "command", "hours of one core"]]
    return rows + [[p.what, f"`{p.command}`", p.hours] for p in PLANNED if not _is_done(p, records)]


def _is_done(planned: Planned, records: Sequence[Record]) -> bool:
    scale = planned.options.split()[1]
    claims = [c for r in records if (r["name"], r["scale"]) == (planned.name, scale) for c in r["claims"]]
    return any(c["what"].startswith(planned.claims) and c["verdict"] != NOT_RUN for c in claims)
