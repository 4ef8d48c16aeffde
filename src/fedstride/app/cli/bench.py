"""fedstride bench: run benchmarks on this machine."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from fedstride.app.cli.common import Json, errors_without_traceback, kept_on_interrupt, wide_console
from fedstride.core.errors import InvalidInput, nearest

if TYPE_CHECKING:
    from fedstride.research.bench.speed import Say

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Run benchmarks on this machine; every figure is a ratio within one run.",
)


@app.command()
def overhead(
    repeats: Annotated[int, typer.Option(min=1, help="Number of interleaved pairs of rounds.")] = 15,
    as_json: Json = False,
) -> None:
    """Measure the overhead over a hand-written PyTorch loop: a CNN of 582,026 parameters, batch 64, one thread."""
    from fedstride.research.bench.overhead import measure

    *_, last = measure(repeats)
    if as_json:
        typer.echo(json.dumps(asdict(last), indent=2))
        return
    typer.echo(f"by hand {last.by_hand:.3f} s, fedstride {last.fedstride:.3f} s, median of {repeats} interleaved pairs")
    typer.echo(f"ratio {last.ratio:.3f}; relative difference of the two models {last.difference:.1e}")


@app.command()
def speed(
    workload: Annotated[list[str] | None, typer.Option(help="Run only this workload, or `growth`; repeatable.")] = None,
    engine: Annotated[
        list[str] | None, typer.Option(help="Compare only this engine with the hand-written loop; repeatable.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Number of timed repeats per engine.")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="Two repeats, without ResNet-18 and growth.")] = False,
    bfloat16: Annotated[
        bool, typer.Option("--bfloat16", help='Time fedstride also with precision="bfloat16".')
    ] = False,
    profile: Annotated[
        str | None, typer.Option(help="Show instead where the time of a client-step of this workload goes.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for speed.json, speed.html and speed.svg.")] = Path("runs/bench"),
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown instead of tables.")] = False,
    as_json: Json = False,
) -> None:
    """Compare the local engine with a hand-written loop and with other libraries.

    Every engine must first compute the same model. `make bench-peers` installs the other libraries.
    """
    from fedstride.research.bench import show

    if profile is not None:
        _profile(profile, markdown, as_json)
        return
    with _with_workers() as say:
        report = _measure(workload, engine, 2 if quick else repeats, quick, bfloat16, say)
    out.mkdir(parents=True, exist_ok=True)
    for name, text in (
        ("speed.json", json.dumps(report, indent=2) + "\n"),
        ("speed.html", show.page(report)),
        ("speed.svg", show.svg(report)),
    ):
        (out / name).write_text(text, encoding="utf-8")
    if as_json or markdown:
        typer.echo(json.dumps(report, indent=2) if as_json else show.markdown(report))
        return
    console = wide_console()
    if report["workloads"]:
        console.print("Times faster than by hand; of matmul peak, memory: by hand / fedstride.")
    for rows in (show.table(report), show.claims(report), show.growth(report)):
        if len(rows) > 1:
            console.print(_table(rows))
    for line in (*show.notes(report), show.about(report), f"Written: {out}/speed.json, speed.html and speed.svg"):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


@app.command()
def painless(
    group: Annotated[
        list[str] | None, typer.Option(help="Run only this group: looked, unseen or users; repeatable.")
    ] = None,
    task: Annotated[list[str] | None, typer.Option(help="Run only this task; repeatable.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Run only FedAvg, auto and this method; repeatable.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 3,
    trials: Annotated[int, typer.Option(min=0, help="Number of Optuna runs to tune FedAvg and FedAdam.")] = 0,
    ablation: Annotated[
        bool, typer.Option("--ablation", help="Compare auto with its variants instead; by default on the group looked.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for the runs, painless.json, .html and .svg.")] = Path(
        "runs/painless"
    ),
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown instead of tables.")] = False,
    as_json: Json = False,
) -> None:
    """Compare algorithms that need no tuning with tuned ones on many tasks, by accuracy and cost.

    Completed runs are kept: the same command continues after an interruption. Data sets are downloaded first if missing.
    """
    from fedstride.research.bench import painless as bench
    from fedstride.research.bench import show_painless as show
    from fedstride.research.bench.show import as_markdown

    with errors_without_traceback():
        tasks = _tasks(group or (["looked"] if ablation and not task else None), task)
        every = [*bench.GRIDS, *bench.FREE]
        methods = _chosen("--method", method, every, every)
        with kept_on_interrupt("the same command"), _progress() as say:
            tell = lambda done, n, name: say(f"{done} of {n} runs  {name}")  # noqa: E731
            if ablation:
                report = bench.ablation(tasks, out, tell, seeds)
            else:
                report = bench.measure(tasks, out, tell, seeds, methods, trials)
    if ablation:
        files = {"ablation.json": json.dumps(report, indent=2) + "\n"}
        tables, words = [show.variants(report), show.variants_by_task(report)], ""
    else:
        files = {"painless.json": json.dumps(report, indent=2) + "\n"}
        files |= {"painless.html": show.page(report), "painless.svg": show.svg(report)}
        tables, words = show.tables(report)[::-1], f"{show.about(report)}\n"  # verdicts last, so that they stay visible
    for name, text in files.items():
        (out / name).write_text(text, encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    elif markdown:
        typer.echo("\n\n".join(map(as_markdown, tables)) if ablation else show.markdown(report))
    else:
        console = wide_console()
        for rows in tables:
            console.print(_table(rows))
        typer.echo(f"{words}Written to {out}: {', '.join(files)}")


def _tasks(groups: list[str] | None, names: list[str] | None) -> list[str]:
    """Return the names of the requested tasks of `bench painless`."""
    from fedstride.research.bench.task_table import TASKS
    from fedstride.research.bench.tasks import GROUPS

    wanted = _chosen("--group", groups, list(GROUPS), list(GROUPS))
    named = _chosen("--task", names, list(TASKS), list(TASKS))
    found = [name for name in named if TASKS[name].group in wanted]
    if not found:
        raise InvalidInput(
            f"none of the tasks {', '.join(named)} is in the group {', '.join(wanted)}; omit --task or --group."
        )
    return found


@app.command()
def parity(
    algorithm: Annotated[list[str] | None, typer.Option(help="Run only this recipe; repeatable.")] = None,
    engine: Annotated[
        list[str] | None, typer.Option(help="Compare only this engine with the local one; repeatable.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds per recipe.")] = 10,
    deployment_rounds: Annotated[
        int, typer.Option(min=1, help="Rounds per recipe in the Flower deployment, where a round takes seconds.")
    ] = 2,
    out: Annotated[Path, typer.Option(help="Folder for parity.json.")] = Path("runs/bench"),
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown instead of tables.")] = False,
    as_json: Json = False,
) -> None:
    r"""Check that all engines train the same model: torchrun, Flower simulation and Flower deployment.

    The exit code is 1 if a model differs by more than its tolerance. Flower needs: pip install 'fedstride\[flower]'.
    """
    from fedstride.algorithm.recipes import RECIPES
    from fedstride.research.bench import parity as bench

    with _with_workers() as say:
        recipes = _chosen("--algorithm", algorithm, list(RECIPES), list(RECIPES))
        engines = _chosen("--engine", engine, list(bench.LANES), list(bench.LANES))
        report = bench.measure(recipes, engines, rounds, deployment_rounds, say)
    _written(out / "parity.json", report)
    if as_json or markdown:
        typer.echo(json.dumps(report, indent=2) if as_json else bench.markdown(report))
    else:
        console = wide_console()
        console.print(_table(bench.table(report)))
        for line in (*bench.notes(report), bench.about(report), f"Written: {out}/parity.json"):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    if not bench.kept(report):
        raise typer.Exit(1)


@app.command()
def wire(
    engine: Annotated[
        list[str] | None,
        typer.Option(
            help="Run only local, torchrun, simulation, deployment, or cnn (2 processes against 1); repeatable."
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Number of timed rounds per case.")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="Skip 2.5e7 parameters and the deployments.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for wire.json.")] = Path("runs/bench"),
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown instead of tables.")] = False,
    as_json: Json = False,
) -> None:
    """Measure the overhead of a round on each engine: seconds, and bytes on the wire.

    For Flower, this is the overhead over an app whose clients return the arrays that they receive.
    """
    from fedstride.research.bench import show_wire as show
    from fedstride.research.bench import wire as bench

    every = ["local", "torchrun", "simulation", "deployment", "cnn"]
    sizes = bench.Sizes(sides=(bench.SMALL, bench.MIDDLE), repeats=repeats) if quick else bench.Sizes(repeats=repeats)
    with _with_workers() as say:
        engines = _chosen("--engine", engine, every, [e for e in every if not (quick and e == "deployment")])
        report = bench.measure(engines, sizes, say)
    _written(out / "wire.json", report)
    if as_json or markdown:
        typer.echo(json.dumps(report, indent=2) if as_json else show.markdown(report))
        return
    console = wide_console()
    for rows in (make(report) for make in show.TABLES.values()):
        if len(rows) > 1:
            console.print(_table(rows))
    for line in (*show.notes(report), show.about(report), f"Written: {out}/wire.json"):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


@app.command()
def private(
    data: Annotated[str, typer.Option(help="Data set of 28 x 28 images: mnist or fashion_mnist.")] = "mnist",
    model: Annotated[list[str] | None, typer.Option(help="Run only softmax or mlp; repeatable.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Softmax, epsilon 3, ten rounds, one seed.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for the runs and private.json.")] = Path("runs/private"),
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown instead of tables.")] = False,
    as_json: Json = False,
) -> None:
    """Compare auto with DP-FedAvg and FedExP with tuned rates at equal epsilon.

    Completed runs are kept: the same command continues after an interruption. The data set is downloaded first if missing.
    """
    from fedstride.research.bench import private as bench
    from fedstride.research.bench.show import as_markdown

    with errors_without_traceback():
        (data,) = _chosen("--data", [data], ["mnist", "fashion_mnist"], [])
        models = _chosen("--model", model, list(bench.MODELS), list(bench.MODELS))
        few: dict[str, Any] = {"seeds": 1, "models": ["softmax"], "epsilons": [3.0], "rounds": 10} if quick else {}
        with kept_on_interrupt("the same command"), _progress() as say:
            tell = lambda done, n, name: say(f"{done} of {n} runs  {name}")  # noqa: E731
            report = bench.measure(out, tell, data, **{"seeds": seeds, "models": models, **few})
    _written(out / "private.json", report)
    if as_json or markdown:
        typer.echo(json.dumps(report, indent=2) if as_json else as_markdown(bench.table(report)))
        return
    wide_console().print(_table(bench.table(report)))
    typer.echo(f"{bench.about(report)}\nWritten: {out}/private.json")


def _written(path: Path, report: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def _profile(workload: str, markdown: bool, as_json: bool) -> None:
    from fedstride.research.bench import profile as bench
    from fedstride.research.bench.show import as_markdown
    from fedstride.research.bench.workloads import WORKLOADS

    with errors_without_traceback():
        (name,) = _chosen("--profile", [workload], list(WORKLOADS), [])
        found = bench.profile(WORKLOADS[name])
    if as_json or markdown:
        typer.echo(json.dumps(asdict(found), indent=2) if as_json else as_markdown(bench.table(found)))
        return
    console = wide_console()
    console.print(_table(bench.table(found)))
    typer.echo(f"{WORKLOADS[name].what}: {found.oracle} oracle, {found.workers} worker(s)")


def _measure(
    workloads: list[str] | None, engines: list[str] | None, repeats: int, quick: bool, mixed: bool, say: Say
) -> dict[str, Any]:
    from fedstride.research.bench import speed
    from fedstride.research.bench.engines import BY_HAND
    from fedstride.research.bench.engines import engines as known_engines
    from fedstride.research.bench.workloads import WORKLOADS

    every, known = [*WORKLOADS, "growth"], known_engines()
    usual = [w for w in every if not (quick and w in ("resnet18", "growth"))]
    work = _chosen("--workload", workloads, every, usual)
    chosen = [known[n] for n in dict.fromkeys((BY_HAND.name, *_chosen("--engine", engines, list(known), list(known))))]
    results = {name: speed.compare(WORKLOADS[name], chosen, repeats, say, mixed) for name in work if name != "growth"}
    grown = speed.growth(say) if "growth" in work else {}
    found = {"machine": speed.machine(), "repeats": repeats, "workloads": results, "growth": grown}
    return {**found, "claims": speed.claims(results, grown)}


def _chosen(option: str, asked: list[str] | None, known: list[str], usual: list[str]) -> list[str]:
    for name in asked or ():
        if name not in known:
            raise InvalidInput(f"{option} {name!r} is unknown; {nearest(name, known)}")
    return [name for name in known if name in asked] if asked else usual


@contextmanager
def _with_workers() -> Iterator[Say]:
    """End worker processes with this one, on SIGTERM as on Ctrl-C."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with errors_without_traceback(), _progress() as say:
        yield say


@contextmanager
def _progress() -> Iterator[Say]:
    """Report progress on stderr: a live line on a terminal, else one line per step."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: console.print(text, markup=False, highlight=False, soft_wrap=True)
        return
    with console.status("starting") as status:
        yield lambda text: status.update(text)


def _table(rows: list[list[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, title in enumerate(rows[0]):
        table.add_column(title, justify="right" if i else "left", style="bold" if title == "fedstride" else None)
    for row in rows[1:]:
        table.add_row(*row, style="red" if {"WRONG", "missed"} & set(row) else None)
    return table
