"""Experiments on made-up results: no cell is run."""

from __future__ import annotations

from fedstride.research.papers import EXPERIMENTS, Lab, experiment
from fedstride.research.papers.page import drawn
from tests.app.report.figures import check


def outcome(monkeypatch, tmp_path, name, result, scale="small", seeds=1):
    """What an experiment says of these results, a function of (work, arguments)."""

    def complete(cells, folder, tell, workers=None):
        return {cell.name: result(cell.work.__name__, cell.arguments) for cell in cells}

    monkeypatch.setattr(experiment, "complete", complete)
    found = EXPERIMENTS[name].measure(Lab(scale, seeds, tmp_path))
    for picture in found.pictures:
        check(drawn(picture))
    return found


def verdicts(found):
    return [claim.verdict for claim in found.claims]
