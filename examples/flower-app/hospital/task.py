"""What is yours: the model, the data of a node, and the data that the server tests with."""

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from torch import nn

TEST = 113  # of the 569 patients of the sample


def make_model(settings):
    """The same on the server and on every node. With normalise = true, it sees inputs of mean 0 and deviation 1."""
    width = settings["hidden"]
    return nn.Sequential(nn.Linear(30, width), nn.Tanh(), nn.Linear(width, 2))


def load_data(settings, node):
    """Runs on the node. What it returns stays there."""
    if "data" in node:  # ./start.sh 'data="/srv/patients.csv"'
        table = np.loadtxt(node["data"], delimiter=",", skiprows=1, ndmin=2)
    elif "partition-id" in node:  # a simulation, or a trial: a share of the sample
        table = sample()[TEST:][node["partition-id"] :: settings["clients"]]
    else:
        raise ValueError("this node has no data; start it with: ./start.sh 'data=\"/path/to/file.csv\"'")
    return tensors(table)


def load_test(settings):
    """Runs on the server. Return None if it has no data."""
    return tensors(sample()[:TEST])


def sample():
    inputs, targets = load_breast_cancer(return_X_y=True)
    return np.random.default_rng(0).permutation(np.column_stack([inputs, targets]))


def tensors(table):
    """One line per patient: 30 measurements, then the class, 0 or 1."""
    return torch.tensor(table[:, :-1], dtype=torch.float32), torch.tensor(table[:, -1], dtype=torch.int64)
