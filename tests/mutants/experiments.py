"""Mutants of the papers' experiments: what they ask of training, their searches and read-outs, and their verdicts."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, within

PAPERS = "tests/research/papers"
NIID = f"{PAPERS}/test_niid_bench.py"
PROTOCOL = f"{PAPERS}/test_protocol.py"
FEDEXP = f"{PAPERS}/test_fedexp.py"
FEDSLS = f"{PAPERS}/test_fedsls.py"
DELTA = f"{PAPERS}/test_delta_sgd.py"
FEDLIN = f"{PAPERS}/test_fedlin.py"
SYNTHETIC = f"{PAPERS}/test_synthetic.py"
SWEEP = "tests/app/test_sweep.py"
SUMMARY = "tests/app/test_summary.py"

of = within("")

MUTANTS = [
    *of(
        "research/papers/silos.py",
        NIID,
        "",
        ("NIID-Bench has batches of 32", "batch_size=64", "batch_size=32"),
        ("NIID-Bench's weight decay is 1e-4", "weight_decay=1e-5", "weight_decay=1e-4"),
        ("NIID-Bench's rate is 0.1", "Momentum(lr=0.01)", "Momentum(lr=0.1)"),
        ("NIID-Bench has no momentum", "Momentum(lr=0.01)", "Momentum(lr=0.01, beta=0.0)"),
        ("silos weigh the same", 'weights="samples"', 'weights="uniform"'),
        ("all images but CIFAR-10's are cropped and flipped", 'augment=data == "cifar10"', 'augment=data != "cifar10"'),
        ("silos are drawn with alpha = 5", "ALPHA = 0.5", "ALPHA = 5.0"),
        ("silos are drawn with seed 0", "SEED = 42", "SEED = 0"),
        ("a silo of one sample is kept", "LEAST = 10 ", "LEAST = 1 "),
    ),
    *of(
        "research/papers/niid_bench.py",
        NIID,
        "",
        (
            "NIID-Bench has 5 epochs a round",
            '"paper": {"rounds": 50, "epochs": 10, "samples": None}',
            '"paper": {"rounds": 50, "epochs": 5, "samples": None}',
        ),
        ("half of the rows are enough", "SHARE = 2 / 3", "SHARE = 1 / 2"),
        (
            "the best column must be exceeded",
            "_margins(lab, row, runs)) >= 0",
            "_margins(lab, row, runs)) > 0",
        ),
        ("our FedAvg may be off by one deviation", "max(1.0, 2 * CHECKED[row])", "max(1.0, CHECKED[row])"),
        (
            "a published accuracy has two digits swapped",
            "(78.10, 33.80, 78.05, 71.67)",
            "(78.10, 38.30, 78.05, 71.67)",
        ),
    ),
    *of(
        "research/papers/rivals.py",
        PROTOCOL,
        "",
        (
            "CIFAR-10 is split with alpha = 0.1",
            '            "data__alpha": 0.3,\n            "training__batch_size": 50',
            '            "data__alpha": 0.1,\n            "training__batch_size": 50',
        ),
        (
            "clients take 10 local steps on CIFAR-10",
            '"data__alpha": 0.3,\n            "training__batch_size": 50,\n            "training__cohort": 20,\n            "training__local_steps": 20',
            '"data__alpha": 0.3,\n            "training__batch_size": 50,\n            "training__cohort": 20,\n            "training__local_steps": 10',
        ),
        ("the training loss is of four rounds", 'loss(run, "train_loss", last=10)', 'loss(run, "train_loss", last=4)'),
        (
            "a score is the best seed's",
            "return fmean(accuracy(run) for run in runs)",
            "return max(accuracy(run) for run in runs)",
        ),
        ("guessing a letter is right once in ten times", '"shakespeare": 100 / 77}', '"shakespeare": CHANCE}'),
    ),
    *of(
        "research/papers/tasks.py",
        PROTOCOL,
        "",
        ("a diverged run counts as a loss of 0", 'return float("inf")', "return 0.0"),
    ),
    *of(
        "research/papers/tuning.py",
        f"{PROTOCOL} {FEDEXP}",
        "",
        (
            "the grid of the server's rate is narrower",
            '{recipe: {"server_lr": (-1, -0.5, 0, 0.5, 1)}',
            '{recipe: {"server_lr": (-0.5, 0, 0.5)}',
        ),
        (
            "all final runs have seed 0",
            "trial(lab, *at, options, ROUNDS[lab.scale], seed))",
            "trial(lab, *at, options, ROUNDS[lab.scale], 0))",
        ),
    ),
    *of(
        "research/papers/fedexp.py",
        f"{PROTOCOL} {FEDEXP}",
        "",
        ("FedExP's target on CIFAR-10 is 70 %", "return 72.0 if", "return 70.0 if"),
        ("FedExP need not be faster than FedAvg", "LEAST = 1.4", "LEAST = 1.0"),
        ("rivals may gain half of FedAvg's rounds", "SAME = 0.15", "SAME = 0.5"),
        (
            "only the slower of two rivals is judged",
            'lambda t: SAME * t["fedavg"] - max(',
            'lambda t: SAME * t["fedavg"] - min(',
        ),
        ("the rounds published for FedAvg and SCAFFOLD are swapped", "(267, 434, 429, 419)", "(267, 429, 434, 419)"),
    ),
    *of(
        "research/papers/fedexp_ablations.py",
        FEDEXP,
        "",
        ("swings are those of the first half", "values[len(values) // 2 :]", "values[: len(values) // 2]"),
        ("FedAvg with FedExP's read-out extrapolates", '"server_lr_max": 1.0}', '"server_lr_max": 2.0}'),
    ),
    *of(
        "research/papers/fedsls.py",
        FEDSLS,
        "",
        ("trials at the end are those of all rounds", "fmean(trials[-fifth:])", "fmean(trials)"),
        ("five of ten pairs are enough", "pairs(column) - PAIRS", "pairs(column) - 5"),
    ),
    *of(
        "research/papers/delta_sgd.py",
        f"{PROTOCOL} {DELTA}",
        "",
        ("Delta-SGD's scores are of four evaluations", "accuracy(run, last=3)", "accuracy(run, last=4)"),
        ("Adam's grid has no 0.1", '"Adam": (0.001, 0.01, 0.1),', '"Adam": (0.001, 0.01),'),
    ),
    *of(
        "research/papers/delta_sgd_more.py",
        DELTA,
        "",
        ("MOON's mu is 5", '"mu": 1.0, "temperature": 0.5', '"mu": 5.0, "temperature": 0.5'),
        ("FedProx's mu is 0.1", '"part": "Proximal", "mu": 0.01', '"part": "Proximal", "mu": 0.1'),
        ("unequal clients weigh the same", '"training__weights": "samples"', '"training__weights": "uniform"'),
    ),
    *of(
        "research/papers/delta_sgd_step.py",
        DELTA,
        "",
        (
            "Delta-SGD's two conditions are swapped",
            '"first": replace(self.rule, delta=ALONE), "second": replace(self.rule, gamma=ALONE)',
            '"first": replace(self.rule, gamma=ALONE), "second": replace(self.rule, delta=ALONE)',
        ),
        (
            "the share of steps is the other condition's",
            "statistics.fmean(first < second",
            "statistics.fmean(first > second",
        ),
    ),
    *of(
        "research/papers/fedlin.py",
        FEDLIN,
        "",
        ("the variance of noise is its deviation", "gradient=Noisy(sqrt(variance))", "gradient=Noisy(variance)"),
        ("gaps are sums over the clients", "- least) / len(tau) for x", "- least) for x"),
        ("steps are not divided by delta_s", '{"lr": 0.15 * a["k"] / 100}', '{"lr": 0.15}'),
        ("the floor is of the first quarter", "gaps[name][-rounds // 4 :]", "gaps[name][: rounds // 4]"),
    ),
    *of(
        "research/papers/synthetic.py",
        SYNTHETIC,
        "",
        ("steps are tuned by the last loss", 'fmean(result["loss"][-10:])', 'result["loss"][-1]'),
        (
            "FedExP's loss is of one iterate",
            '[(x + y) / 2 for x, y in pairwise(xs)] if recipe == "fedexp" else xs',
            "xs[1:]",
        ),
        ("the loss is a mean over equations", "float(sq(A @ x - b)) / size[0]", "float(sq(A @ x - b)) / len(b)"),
        (
            "any lead is an order of magnitude",
            '- _log10(of["fedexp"]) - 1\n',
            '- _log10(of["fedexp"])\n',
        ),
    ),
    *(
        Mutant(name, "app/sweep.py", old, new, f"{SWEEP}::test_{test}")
        for name, old, new, test in (
            (
                "the mean of two is of two evaluated rounds",
                "two[event.round] = _scores(prepared, (event.x + previous) / 2)\n        previous = event.x",
                "two[event.round] = _scores(prepared, (event.x + previous) / 2)\n            previous = event.x",
                "the_pair_is_of_successive_rounds_where_not_all_are_evaluated",
            ),
            (
                "a round that was done again counts as it was done first",
                'list({row["round"]: row for row in map(json.loads, some)}.values())',
                'list({row["round"]: row for row in reversed(list(map(json.loads, some)))}.values())[::-1]',
                "a_round_that_was_done_again_counts_once_as_it_was_done_last",
            ),
            (
                "a resumed run has the seconds of its last part",
                'result.pop("seconds", taken) if cell.resumes else taken',
                "taken",
                "the_seconds_of_a_resumed_cell_are_those_of_all_its_parts",
            ),
        )
    ),
    *of(
        "app/summary.py",
        SUMMARY,
        "",
        (
            "the table's deviation is of a population",
            "{statistics.stdev(values):.{digits}f}",
            "{statistics.pstdev(values):.{digits}f}",
        ),
        (
            "the rounds to a target are the fastest seed's",
            "{statistics.mean(known):.0f}{some}",
            "{min(known):.0f}{some}",
        ),
    ),
]
