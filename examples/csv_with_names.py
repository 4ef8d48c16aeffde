"""A CSV file with named columns, classes and clients: scikit-learn's breast cancer data, as four clinics might hold it."""

from pathlib import Path

import torch
from sklearn.datasets import load_breast_cancer
from torch import nn

import fedstride as fs

data = load_breast_cancer(as_frame=True)
frame = data.data.assign(diagnosis=data.target_names[data.target])
size = frame["mean radius"].rank(pct=True)  # clinics that see tumours of different sizes
frame["clinic"] = [("Aspen", "Birch", "Cedar", "Dogwood")[min(3, int(4 * s))] for s in size]
Path("runs").mkdir(exist_ok=True)
frame.to_csv("runs/tumours.csv", index=False)

table = fs.data.load("runs/tumours.csv", label="diagnosis", client="clinic")
clients = fs.data.federate(table, fs.data.partition.natural(table.groups))
print(table.about)

torch.manual_seed(0)
run = fs.train(
    nn.Linear(table.train[0].shape[1], table.classes),
    "cross_entropy",
    clients,
    rounds=30,
    batch_size=16,
    test=table.test,
    metrics=["f1", "auc"],
    normalise=True,  # columns of different units; the returned model takes raw inputs
)

last = run.history[-1]
print(f"accuracy {last['test_accuracy']:.3f}, F1 {last['f1']:.3f}, AUC {last['auc']:.3f}")
