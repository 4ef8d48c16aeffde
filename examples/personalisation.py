"""Personalisation: clients share the body of a network and keep a head of their own; does federation help each of them?"""

import torch
from torch import nn

import fedstride as fs

torch.manual_seed(0)


class Reader(nn.Module):
    """A shared body, and a head that stays with its client."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())
        self.head = nn.Linear(32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(images))


table = fs.data.load("digits")
images, labels = table.train
parts = fs.data.partition.pathological(labels, 20, seed=0, classes=3)  # each client sees three of the ten digits
mixed = [part[torch.randperm(len(part))] for part in parts]
cut = [(part[: len(part) // 3], part[len(part) // 3 :]) for part in mixed]  # a third to train on, the rest to test
clients = {f"school {i}": (images[mine], labels[mine]) for i, (mine, _) in enumerate(cut)}
tests = [(images[rest], labels[rest]) for _, rest in cut]

run = fs.train(Reader(), "cross_entropy", clients, rounds=30, batch_size=10, test=tests, personal=["head.*"])
report = fs.personal_report(run, tests)

print(f"trained alone {report.means['alone']:.3f}, shared model {report.means['shared']:.3f}", end=", ")
print(f"personalised {report.means['personalised']:.3f}")
for row in report.rows[:3]:
    print(f"{row['client']}: {row['alone']:.3f} alone, {row['personalised']:.3f} personalised")
reader = run.personal["school 0"]  # the model of one client
print(f"school 0 uses {sum(p.numel() for p in reader.head.parameters())} parameters that never left it")
