"""Every mutant still applies to the source, and is another program."""

from __future__ import annotations

import ast

import pytest

from fedstride.research.verify import law
from tests.mutants.mutant import SOURCE
from tests.mutants.table import MUTANTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.file}: {m.name}")
def test_its_text_occurs_once_and_what_replaces_it_is_python(mutant):
    text = (SOURCE / mutant.file).read_text()
    assert text.count(mutant.old) == 1
    changed = text.replace(mutant.old, mutant.new)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))


def test_they_are_many_have_names_of_their_own_and_laws_that_exist():
    assert len(MUTANTS) >= 60
    assert len({(m.file, m.name) for m in MUTANTS}) == len(MUTANTS)
    assert not [
        only for m in MUTANTS for only in filter(None, m.laws.split("; ")) if not law.select(only.partition("[")[0])
    ]


def test_every_update_rule_has_a_mutant_with_a_law():
    rules = [
        p
        for folder in ("client/step", "client/objective", "client/drift", "client/gradient", "server")
        for p in (SOURCE / folder).glob("*.py")
    ]
    without = {"__init__.py", "plain.py", "terms.py", "minibatch.py"}
    broken = {m.file for m in MUTANTS if m.laws}
    expected = {str(p.relative_to(SOURCE)) for p in rules if p.name not in without}
    assert not expected - broken
