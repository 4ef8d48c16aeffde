"""What clients upload is what the layout says."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from torch import nn

import fedstride as fs
from fedstride.algorithm.recipes import RECIPES
from fedstride.client.exchange import Upload, layout
from fedstride.core.model import Replica
from tests.problems import classification, classifier, learn, seeded

MORE = {
    "compressed": fs.Algorithm(up=fs.TopK(0.2)),
    "compressed gradients": fs.recipes.fedlin(up=fs.TopK(0.2), down=fs.TopK(0.2)),
    "private": fs.Algorithm(privacy=fs.Privacy(1.0, quantile=0.5)),
    "private auto": replace(fs.recipes.auto(), privacy=fs.Privacy(1.0)),
    "nova with momentum": fs.recipes.fednova(beta=0.5),
    "robust": fs.Algorithm(aggregate=fs.Median()),
}
ALL = {name: make() for name, make in RECIPES.items()} | MORE


AVERAGING = [name for name, a in ALL.items() if a.privacy is None and name not in ("fedtrack", "moon")]  # others refuse


@dataclass
class Seen:
    """The local engine, with an eye on the uploads."""

    uploads: dict[str, Upload] = field(default_factory=dict)
    leads: bool = True

    def open(self, task, exchanges, fresh):
        def watched(kind, work):
            def see(*args):
                self.uploads[kind] = work(*args)
                return self.uploads[kind]

            return see

        seen = {kind: replace(e, work=watched(kind, e.work)) for kind, e in exchanges.items()}
        return fs.engine.Local().open(task, seen, fresh)


@pytest.mark.filterwarnings("ignore:Privacy with seed=0")
@pytest.mark.parametrize(("name", "statistics"), [(n, False) for n in ALL] + [(n, True) for n in AVERAGING])
def test_uploads_are_as_the_layout_says(name, statistics):
    a, engine = ALL[name], Seen()
    normed = seeded(lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 3)))
    model = normed if statistics else classifier()
    learn(a, model=model, clients=classification(), engine=engine, rounds=1)
    replica = Replica(model)
    assert list(engine.uploads) == (["gradients", "updates"] if a.exchanges_gradients else ["updates"])
    for kind, upload in engine.uploads.items():
        fields, metrics = layout(a, kind, replica.shapes, 7 if statistics and kind == "updates" else 0)
        assert {k: v.shape[1] for k, v in upload.fields.items()} == fields
        assert upload.metrics.keys() == set(metrics)
        assert all(v.dtype == replica.dtype for v in upload.fields.values())
        assert all(v.shape[1] == 1 for v in upload.metrics.values())
