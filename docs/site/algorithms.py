"""One page per recipe, from its parts, the tables under docs and the records of the benchmarks: a new recipe needs no page."""

from __future__ import annotations

import inspect
import json
import re
import sys
from typing import Any

from docs.site.markdown import DOCS, plain, rows, table
from fedstride.algorithm import Algorithm
from fedstride.algorithm.recipes import RECIPES
from fedstride.algorithm.registry import SLOTS, arguments_of, summary
from fedstride.client.gradient import Minibatch
from fedstride.client.objective import Plain
from fedstride.client.step import Constant
from fedstride.server import Average

FOLDER = "algorithms"
SLOT_NAMES = {
    "step": "Client step rule",
    "server": "Server rule",
    "objective": "Objective",
    "drift": "Drift correction",
}
SLOT_NAMES["gradient"] = "Gradient estimator"
CODE = """```python
run = fs.train(model, "cross_entropy", clients, "{name}", rounds=20)
```

```text
fedstride run --algorithm {name}
```
"""


def names(text: str) -> set[str]:
    """Return the words of a text in the spelling of recipes: Delta-SGD is delta_sgd, and SCAFFOLD scaffold."""
    words = {re.sub("[-_]", "", word.lower()) for word in re.findall(r"[A-Za-z](?:[\w-]*\w)?", text)}
    return {name for name in RECIPES if name.replace("_", "") in words}


def parts(algorithm: Algorithm) -> dict[str, Any]:
    """Return the parts of an algorithm by slot, without those that do nothing."""
    found = {slot: getattr(algorithm, slot) for slot in SLOTS}
    return {slot: part for slot, part in found.items() if part and not isinstance(part, Plain | Minibatch)}


def when(name: str) -> str:
    """Return the situations for which how-to-choose.md names this algorithm, and how it fails."""
    chosen = [
        row for row in rows("how-to-choose.md", "| your situation") if f"`{name}" in row[1] and name in names(row[1])
    ]
    text = table(["your situation", "try", "because"], chosen)
    page = (DOCS / "how-to-choose.md").read_text().partition("## How they fail")[2]
    bullets = re.findall(r"^- (.*(?:\n  .*)*)", page, flags=re.M)
    fails = [bullet for bullet in bullets if name in names("".join(re.findall(r"^\*\*(.*?)\*\*", bullet)))]
    if fails:
        text += "\nHow it fails:\n\n" + "\n".join(f"- {' '.join(bullet.split())}" for bullet in fails) + "\n"
    text = text.replace("](", "](../") + "\nMore in [How to choose](../how-to-choose.md).\n"
    return text


def computes(algorithm: Algorithm) -> str:
    """Return a list of the parts with the first paragraphs of their docstrings, which hold the formulas."""
    lines = []
    for slot, part in parts(algorithm).items():
        kind = type(part)
        link = f"[`fs.{kind.__name__}`][{kind.__module__}.{kind.__qualname__}]"
        lines.append(f"- **{SLOT_NAMES[slot]}** {link}: {plain(summary(kind))}")
    if algorithm.readout == "average":
        lines.append("- **Read-out**: the model that is evaluated and returned is a weighted mean of the iterates.")
    symbols = (
        "y is a client's model, g its gradient, x the server's model, Dbar the mean update and S the mean squared "
    )
    return "\n".join(lines) + f"\n\nIn the formulas, {symbols}norm of the updates.\n"


def arguments(name: str) -> str:
    """Return the table of a recipe's arguments."""
    described = arguments_of(RECIPES[name])
    given = inspect.signature(RECIPES[name]).parameters.values()
    found = [(f"`{p.name}`", f"`{p.default!r}`", plain(described[p.name])) for p in given]
    return table(["argument", "default", "meaning"], found) or "None: there is nothing to set.\n"


def papers(algorithm: Algorithm) -> str:
    """Return the citations and deviations in the heads of the parts' modules."""
    own = [part for part in parts(algorithm).values() if type(part) not in (Constant, Average)]
    heads = [inspect.getdoc(sys.modules[type(part).__module__]) or "" for part in own or [algorithm.server]]
    text = ""
    for head in dict.fromkeys(heads):
        cited, _, deviations = head.partition("\n\n")[2].partition("Deviations: ")
        if cited:
            text += f"- {plain(cited)}"
            text += f" Deviations from the paper: {plain(deviations)}\n" if deviations else "\n"
    return text or "The parts have no paper of their own.\n"


def laws(name: str) -> str:
    """Return the statements of the papers that name the algorithm, as what-we-check.md lists them."""
    found = [row for row in rows("what-we-check.md", "| source | ") if name in names(" ".join(row))]
    if not found:
        return "No theorem of this algorithm is checked. It passes the tests that all algorithms pass.\n"
    text = table(["source", "statement", "measured"], found)
    return f"{text}\n`fedstride verify` measures these; see [what is checked](../what-we-check.md).\n"


def benchmark(name: str) -> str:
    """Return the scores in docs/painless.json, beside those of `auto` (for `auto`, of tuned FedAvg)."""
    record = json.loads((DOCS / "painless.json").read_text())
    other = "fedavg" if name == "auto" else "auto"
    lines = []
    for task, results in record["results"].items():
        by = {result["method"]: result for result in results}
        if name in by:
            about = record["tasks"][task]
            lines.append([about["what"], *(f"{by[m]['score']:.1f}" for m in (name, other)), f"`{by[name]['setting']}`"])
    if not lines:
        return ""
    head = ["task", *(f"`{m}`" if m == "auto" else f"tuned `{m}`" for m in (name, other)), "setting"]
    text = (
        f"Scores in percent on {len(lines)} tasks, means of {record['seeds']} seeds; rates tuned on the test set:\n\n"
    )
    width = 3 if name == "auto" else 4  # it has one setting
    return f"{text}{table(head[:width], [line[:width] for line in lines])}\n[What was measured, and its limitations](../auto.md#evidence).\n\n"


def figures(name: str) -> str:
    """Return the figures that were measured here: the benchmark, one comparison, and reproductions of papers."""
    compared = [row for row in rows("how-to-choose.md", "| algorithm | accuracy") if name in names(row[0])]
    text = benchmark(name)
    if compared:
        text += "On scikit-learn's digits, in [one comparison](../how-to-choose.md#one-comparison):\n\n"
        text += table(["algorithm", "accuracy", "rounds to 90 %", "gradients"], compared) + "\n"
    claims = [row for row in rows("reproduced.md", "| experiment |") if name in names(row[2]) and row[5] != "not run"]
    if claims:
        text += "Claims of the papers, [reproduced](../reproduced.md):\n\n"
        head = ["experiment", "scale", "claim", "paper", "ours", "verdict"]
        text += table(head, [row[:6] for row in claims])
    return text or "None yet: `fedstride compare` measures it on your data.\n"


def page(name: str) -> str:
    """Return the page of a recipe."""
    algorithm = RECIPES[name]()
    sections = {
        "When to use it": when(name),
        "What it computes": computes(algorithm),
        "Arguments": arguments(name),
        "Use": CODE.format(name=name),
        "Paper": papers(algorithm) + "\nFull titles are in [CITATION.cff](../repository/CITATION.cff.md).\n",
        "Theory": laws(name),
        "Figures": figures(name),
    }
    head = f"# `{name}` {{ #fedstride.recipes.{name} }}\n\n{plain(summary(RECIPES[name]))}\n\n"
    if name == "auto":
        head += "Its design and its evidence have [a page of their own](../auto.md).\n\n"
    return head + "\n".join(f"## {title}\n\n{text}" for title, text in sections.items())


def pages() -> dict[str, str]:
    """Return the pages of all recipes, and a list of them."""
    listed = [(f"[`{name}`]({name}.md)", plain(summary(make))) for name, make in RECIPES.items()]
    text = "# Algorithms\n\nIf you do not know which one to take, take `auto`, the default, or read [How to choose]"
    text += (
        "(../how-to-choose.md). An algorithm is a combination of parts; [write your own](../write-an-algorithm.md).\n\n"
    )
    found = {f"{FOLDER}/index.md": text + table(["name", "description"], listed)}
    return found | {f"{FOLDER}/{name}.md": page(name) for name in RECIPES}
