"""One mutant: where the source changes, and what should notice."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src/fedstride"


@dataclass(frozen=True)
class Mutant:
    """Replace `old`, which occurs once in the file, by `new`.

    Args:
        name: what is wrong, in a few words.
        file: a file below src/fedstride.
        old: source text.
        new: the text in its place.
        tests: arguments of pytest that select the tests to run, separated by spaces.
        laws: laws to check, as `fedstride verify --only` selects them, separated by "; ". Of a law over a table of
            rules, [text] selects the rules whose name contains the text. Empty: the mutant is not in the formula of an update
            rule.
    """

    name: str
    file: str
    old: str
    new: str
    tests: str
    laws: str = ""

    def apply(self, folder: Path) -> None:
        """Break the copy of the source in a folder."""
        path = folder / self.file
        text = path.read_text()
        assert text.count(self.old) == 1, (
            f"{self.name}: {self.old!r} occurs {text.count(self.old)} times in {self.file}"
        )
        path.write_text(text.replace(self.old, self.new))

    def undo(self, folder: Path) -> None:
        shutil.copy2(SOURCE / self.file, folder / self.file)  # with its time, so that compiled files stay valid


def within(folder: str) -> Callable[..., list[Mutant]]:
    """Return a function that makes the mutants of a file in this folder: of(file, tests, laws, (name, old, new), ...)."""

    def of(file: str, tests: str, laws: str, *changes: tuple[str, str, str]) -> list[Mutant]:
        return [Mutant(name, f"{folder}{file}", old, new, tests, laws) for name, old, new in changes]

    return of
