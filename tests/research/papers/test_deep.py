"""The deep experiments of FedExP and FedSLS on made-up results: the papers' own agree, their contraries differ."""

import json

import pytest

from fedstride.research.papers.experiment import AGREES, DIFFERS, IN_KIND, NOT_RUN, UNDECIDED
from tests.research.papers import test_fedexp as of_fedexp
from tests.research.papers import test_fedsls as of_fedsls
from tests.research.papers.pretend import Pretended

pytestmark = pytest.mark.slow

TRUE = {
    **dict.fromkeys(of_fedexp.MINE, of_fedexp.as_in_fedexp),
    **dict.fromkeys(of_fedsls.MINE, of_fedsls.as_in_fedsls),
}
FALSE = {
    **dict.fromkeys(of_fedexp.MINE, of_fedexp.against_fedexp),
    **dict.fromkeys(of_fedsls.MINE, of_fedsls.against_fedsls),
}


@pytest.mark.parametrize("name", TRUE)
def test_what_the_paper_says_is_in_kind_at_small_scale_and_agrees_at_its_own(name, monkeypatch, tmp_path):
    for scale in ("small", "medium"):
        found = Pretended(monkeypatch, tmp_path, TRUE[name], scale).verdicts(name)
        assert set(found) - {NOT_RUN} == {IN_KIND}
    full = Pretended(monkeypatch, tmp_path, TRUE[name], "paper").verdicts(name)
    assert set(full) - {NOT_RUN} == {AGREES}


@pytest.mark.parametrize("name", FALSE)
def test_the_contrary_differs(name, monkeypatch, tmp_path):
    verdicts = Pretended(monkeypatch, tmp_path, FALSE[name], seeds=2).verdicts(name)
    assert set(verdicts) - {NOT_RUN} == {DIFFERS}
    alone = Pretended(monkeypatch, tmp_path, FALSE[name]).verdicts(name)
    assert set(alone) - {NOT_RUN} == {UNDECIDED}, "one seed has no interval"


@pytest.mark.parametrize("scale", ["small", "medium", "paper"])
@pytest.mark.parametrize("paper", [of_fedexp, of_fedsls])
def test_a_name_belongs_to_one_configuration(scale, paper, monkeypatch, tmp_path):
    pretended = Pretended(monkeypatch, tmp_path, TRUE[paper.MINE[0]], scale, seeds=2)
    for name in paper.MINE:
        pretended.verdicts(name)
    by_name = {}
    for cell in pretended.cells:
        assert by_name.setdefault(cell.name, cell.arguments) == cell.arguments
    assert len({json.dumps(a, sort_keys=True) for a in by_name.values()}) == len(by_name)
