"""Early stopping: train until F1 on held-out data no longer improves, and keep the best model."""

import torch
from torch import nn

import fedstride as fs

torch.manual_seed(0)


def bank(shift: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Payments, of which one in ten is fraud; some labels are wrong, which a large model learns by heart."""
    targets = (torch.rand(150) < 0.1).long()
    inputs = torch.randn(150, 10) + shift + 1.2 * targets[:, None]
    wrong = torch.rand(150) < 0.05
    return inputs, torch.where(wrong, 1 - targets, targets)


clients = {name: bank(shift) for name, shift in [("north", -0.2), ("east", 0.0), ("south", 0.1), ("west", 0.2)]}
held_out = tuple(torch.cat(part) for part in zip(bank(-0.1), bank(0.0), bank(0.1), strict=True))
model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 2))

run = fs.train(
    model,
    nn.CrossEntropyLoss(),
    clients,
    rounds=300,
    batch_size=10,
    test=held_out,
    metrics=["f1", "recall"],
    stop=fs.EarlyStopping(metric="f1", patience=20, keep="best"),
)

print(f"{run.ended} after {len(run.history)} of 300 rounds; best round {run.best.round}")
print(f"F1 {run.best.metrics['f1']:.3f} there, {run.history[-1]['f1']:.3f} in the last round")
print(f"recall of the returned model {fs.evaluate(run.model, held_out, metrics=['recall'])['recall']:.3f}")
