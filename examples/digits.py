"""What a learning rate costs: FedAvg with three of them against algorithms that were told nothing.

50 clients with two kinds of digits each (scikit-learn's 8 x 8 images, pixels 0 to 16, not rescaled), 10 per round.
"""

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from sklearn.datasets import load_digits
from torch import nn

import fedstride as fs

ROUNDS = 60
CONTESTANTS = {
    "fedavg, lr 0.003 (ten times too small)": fs.recipes.fedavg(lr=0.003),
    "fedavg, lr 0.03 (right)": fs.recipes.fedavg(lr=0.03),
    "fedavg, lr 0.3 (ten times too large)": fs.recipes.fedavg(lr=0.3),
    "fedsls, told nothing": fs.recipes.fedsls(),
    "auto, told nothing": fs.recipes.auto(),
}


def federation(clients: int = 50) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], tuple[torch.Tensor, torch.Tensor]]:
    """Sorted by label and dealt out in two shards per client; the test set is kept apart."""
    digits = load_digits()
    X, y = torch.tensor(digits.data, dtype=torch.float32), torch.tensor(digits.target)
    source = torch.Generator().manual_seed(0)
    shuffled = torch.randperm(len(X), generator=source)
    train, test = shuffled[:1500], shuffled[1500:]
    shards = train[y[train].argsort(stable=True)].chunk(2 * clients)
    dealt = torch.randperm(2 * clients, generator=source).view(clients, 2).tolist()
    mine = [torch.cat([shards[a], shards[b]]) for a, b in dealt]
    return [(X[i], y[i]) for i in mine], (X[test], y[test])


def main() -> None:
    clients, test = federation()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    title = "Digits: 50 clients with two classes each, 60 rounds"
    table = Table("algorithm", "accuracy", "rounds to 90 %", "mean step", title=title)
    with Progress(transient=True) as progress:
        for name, algorithm in CONTESTANTS.items():
            bar = progress.add_task(name, total=ROUNDS)
            run = fs.train(
                model,
                "cross_entropy",
                clients,
                algorithm,
                rounds=ROUNDS,
                cohort=10,
                epochs=1,
                batch_size=10,
                test=test,
                callbacks=[lambda event, bar=bar: progress.update(bar, completed=event.round)],
            )
            reached = [row["round"] for row in run.history if row["test_accuracy"] >= 0.9]
            table.add_row(
                name,
                f"{100 * run.history[-1]['test_accuracy']:.1f} %",
                str(reached[0]) if reached else "never",
                f"{sum(run.history['client_step']) / ROUNDS:.3g}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
