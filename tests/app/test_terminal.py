"""What a person sees in a terminal of 80, 100 and 120 columns: nothing that matters is cut."""

import re
import sys

import pytest
from rich.console import Console

from fedstride.app.summary import tables_of
from fedstride.training.history import COLUMNS
from fedstride.training.progress import line, shown
from tests.app.terminal import screens

WIDTHS = (80, 100, 120)
ROW = {
    **dict.fromkeys(COLUMNS),
    **{"round": 3, "train_loss": 0.12345, "test_loss": 0.54321, "test_accuracy": 0.912, "client_step": 0.0123},
    **{"server_step": 1.5, "trials": 0.0, "lost": 0, "rollbacks": 0, "bytes_up": 10**9, "bytes_down": 10**9},
    **{"gradients": 123456789, "forwards": 987654321, "seconds": 0.1},
}
PROGRAM = """
import sys, time
from types import SimpleNamespace
from rich.console import Console
from fedstride.training.progress import shown
from tests.app.test_terminal import ROW
with shown(sys.argv[1], 60, "live", Console()) as show:
    for i in range(12):
        show(SimpleNamespace(round=i, metrics=ROW))
        time.sleep(0.05)
print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_round_losses_accuracy_and_time_left_are_never_cut(width):
    title = "a_file_with_quite_a_long_name_2024_final_version, fedavg(lr=0.003,server_lr=0.1), seed 0"
    code, seen = screens([sys.executable, "-c", PROGRAM, title], width)
    bars = [screen for screen in seen if any("/60" in text and "left" in text for text in screen)]  # drawn to the end
    assert code == 0 and bars
    for screen in bars:
        bar = next(text for text in screen if "/60" in text)
        assert re.search(r"a_file_with.*… .* \d+/60 (-:--:--|\d:\d\d:\d\d) left$", bar), bar
    below = {screen[next(i for i, text in enumerate(screen) if "/60" in text) + 1] for screen in bars}
    assert line(ROW, width) in below and not any("…" in text for text in below)
    assert line(ROW, width).startswith("test accuracy 91.2 %  test loss 0.5432  training loss 0.1235")
    assert seen[-1][0] == "done", "the bar vanishes at the end"


@pytest.mark.parametrize("width", [*WIDTHS, 1000])
@pytest.mark.parametrize("seeds", [1, 3])
def test_the_table_of_a_comparison_keeps_its_numbers(width, seeds):
    names = ["auto", "fedadam(lr=0.01,server_lr=0.1,betas=[0.9,0.99])", "fedavg(lr=0.03)"]
    rows = [[{**ROW, "f1": 0.777, "test_worst_decile": 0.5, "test_spread": 0.25}]] * seeds
    console = Console(width=width, record=True, force_terminal=True)
    with console.capture() as capture:
        for table in tables_of(dict.fromkeys(names, rows), 0.9, width):
            console.print(table)
    text = capture.get()
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    assert max(map(len, lines)) <= width and "…" not in text
    for number in ("91.2", "0.543", "0.777", "0.500", "0.250", "2000.0", "123456789", "987654321", "3"):
        assert len(re.findall(rf"(?<![\d.]){re.escape(number)}(?![\d.])", text)) >= len(names), number
    for title in ("accuracy", "to 90 %", "test loss", "f1", "worst tenth", "spread", "MB", "gradients", "forwards"):
        assert title in text
    heads = [line for line in lines if line.strip().startswith("algorithm")]
    assert len(heads) == 1 if width == 1000 else len(heads) >= 2


def test_training_loss_is_named_where_there_is_no_test_set():
    without = {**ROW, "test_loss": None, "test_accuracy": None}
    (table,) = tables_of({"auto": [[without]]}, None)
    assert [column.header for column in table.columns][:2] == ["algorithm", "training loss"]
    assert line(without).startswith("training loss 0.1235  client step")


def test_a_line_leaves_out_what_does_not_fit_steps_first():
    assert line(ROW, 70) == "test accuracy 91.2 %  test loss 0.5432  training loss 0.1235"
    assert line(ROW) == line(ROW, 200) == line(ROW, 70) + "  client step 0.0123  server step 1.5"
    lost = {**ROW, "lost": 2}
    assert "lost 2" in line(lost, 80) and "server step" not in line(lost, 80)


def test_without_a_terminal_there_are_lines(capsys):
    from types import SimpleNamespace

    with shown("mine", 20, "live", Console(force_terminal=False)) as show:
        for i in range(21):
            show(SimpleNamespace(round=i, metrics=ROW))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 11 and lines[0].startswith("mine  round 1/20  test accuracy 91.2 %")


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_a_whole_run_in_a_terminal(width, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{i % 7},{(i * 5) % 11},{'yes' if i % 7 > (i * 5) % 11 else 'no'},{'abc'[i % 3]}" for i in range(300)]
    (tmp_path / "shops.csv").write_text("\n".join(["age,income,bought,shop", *rows]))
    command = [
        sys.executable,
        "-m",
        "fedstride",
        "run",
        "shops.csv",
        "--label",
        "bought",
        "--client",
        "shop",
        "--rounds",
        "60",
    ]
    code, seen = screens(command, width)
    assert code == 0
    bars = [text for screen in seen for text in screen if "/60" in text and "left" in text]
    assert bars and all(re.match(r"shops, auto .* \d+/60 \S+ left$", bar) for bar in bars)
    end = [text for text in seen[-1] if text]
    assert end[0].startswith("Table 'shops.csv': 240 training and 60 test samples")
    assert any(text.startswith("shops, auto: 60 rounds, test accuracy") for text in end)
    assert any(text.startswith("Next: ") for text in end) and "report.html" in "".join(end[-2:])
    assert all("…" not in text and "digits" not in text for text in end)
