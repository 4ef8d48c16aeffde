"""Mutants of the papers' protocol: weight decay, clipping, read-outs, targets, partitions."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

TWINS = "tests/test_against_twins.py::test_"
LOOP = "tests/client/test_local_loop.py"
DECAY = f"{LOOP} {TWINS}weight_decay"
CLIP = f"{LOOP} tests/core/test_rows.py tests/client/test_corrected.py {TWINS}weight_decay_and_clipping"

MUTANTS = [
    *(
        Mutant(name, "client/corrected.py", old, new, tests, laws)
        for name, old, new, tests, laws in (
            (
                "weight decay counts half in the gradient",
                "G.add_(W, alpha=self.weight_decay)",
                "G.add_(W, alpha=self.weight_decay / 2)",
                DECAY,
                "protocol.weight",
            ),
            (
                "weight decay counts twice in the loss",
                "extra = self.weight_decay / 2 * sq(W)",
                "extra = self.weight_decay * sq(W)",
                DECAY,
                "protocol.weight",
            ),
            (
                "line searches ignore weight decay",
                "L + self.weight_decay / 2 * sq(W) if self.weight_decay else L",
                "L",
                DECAY,
                "protocol.weight",
            ),
            (
                "clipping comes after the correction",
                "return (L, G) if self.corr is None else (L + dot(self.corr, W), G + self.corr)",
                "return (L, G) if self.corr is None else (L + dot(self.corr, W), clip(G + self.corr, self.clip_norm or 1e9))",
                CLIP,
                "protocol.clip",
            ),
            (
                "the correction is not in the searched loss",
                "return L if self.corr is None else L + dot(self.corr, W)",
                "return L",
                f"{TWINS}corrections_with_adaptive_steps",
                "fedsls.accepted",
            ),
            (
                "the proximal term pulls away",
                "G.add_(W - t.center, alpha=t.curvature)",
                "G.add_(W - t.center, alpha=-t.curvature)",
                f"{TWINS}fedprox",
                "Prop 1",
            ),
            (
                "the proximal term counts twice in the loss",
                "L = L + t.curvature / 2 * sq(W - t.center)",
                "L = L + t.curvature * sq(W - t.center)",
                LOOP,
                "",
            ),
            (
                "Polyak's step from the clipped gradient",
                "        self.plain = (L, G)\n        if self.clip_norm is not None:\n            G = clip(G, self.clip_norm)\n",
                "        if self.clip_norm is not None:\n            G = clip(G, self.clip_norm)\n        self.plain = (L, G)\n",
                CLIP,
                "",
            ),
        )
    ),
    *(
        Mutant(name, "core/rows.py", old, new, CLIP, "protocol.clip")
        for name, old, new in (
            ("short gradients are lengthened", "(norm(G) + 1e-6)).clamp(max=1.0)", "(norm(G) + 1e-6))"),
            ("clipping by the squared norm", "clip_norm / (norm(G) + 1e-6)", "clip_norm / (sq(G) + 1e-6)"),
            ("gradients are clipped to 1", "G * (clip_norm / (norm", "G * (1.0 / (norm"),
        )
    ),
    *(
        Mutant(name, "training/state.py", old, new, "tests/training/test_readout.py", "read_outs")
        for name, old, new in (
            ("the average is ignored", 'state.average if algorithm.readout == "average" else state.x', "state.x"),
            (
                "the server's read-out is ignored",
                "return algorithm.server.output(state.x, state.server)",
                "return state.x",
            ),
        )
    ),
    *(
        Mutant(name, file, old, new, tests)
        for name, file, old, new, tests in (
            (
                "the target must be exceeded",
                "app/summary.py",
                'r["test_accuracy"] >= target',
                'r["test_accuracy"] > target',
                "tests/app/test_summary.py",
            ),
            (
                "the target is met by another round",
                "app/summary.py",
                'next((r["round"] for r in history',
                'next((r["round"] + 1 for r in history',
                "tests/app/test_summary.py",
            ),
            (
                "a paper's target must be exceeded",
                "research/papers/tasks.py",
                "100 * value >= target",
                "100 * value > target",
                "tests/research/papers/test_protocol.py",
            ),
            (
                "a failed run counts as its rounds",
                "research/papers/rivals.py",
                "rounds_to(run, target) or rounds + 1",
                "rounds_to(run, target) or rounds",
                "tests/research/papers/test_protocol.py",
            ),
            (
                "the target is of the second quarter",
                "research/papers/rivals.py",
                "if rounds / 2 < t <= rounds * 3 / 4",
                "if rounds / 4 < t <= rounds / 2",
                "tests/research/papers/test_protocol.py",
            ),
            (
                "FedExP's weight decay is 1e-3",
                "research/papers/rivals.py",
                '"training__weight_decay": 1e-4',
                '"training__weight_decay": 1e-3',
                "tests/research/papers/test_protocol.py",
            ),
            (
                "FedExP's clipping is at 1",
                "research/papers/rivals.py",
                'settings["training__clip_norm"] = 10',
                'settings["training__clip_norm"] = 1',
                "tests/research/papers/test_protocol.py",
            ),
            (
                "line searches are clipped",
                "research/papers/rivals.py",
                "if recipe not in SEARCHES:",
                "if recipe:",
                "tests/research/papers/test_protocol.py",
            ),
            (
                "all rivals return two iterates",
                "research/papers/rivals.py",
                'settings["training__readout"] = "last"',
                'settings["training__readout"] = "server"',
                "tests/research/papers/test_protocol.py",
            ),
            (
                "scores are of one evaluation",
                "research/papers/tasks.py",
                'column: str = "test_accuracy", last: int = 4) -> float:',
                'column: str = "test_accuracy", last: int = 1) -> float:',
                "tests/research/papers/test_protocol.py",
            ),
            (
                "Dirichlet with alpha / n for each class",
                "data/partition.py",
                "random.dirichlet(alpha * len(prior) * prior)",
                "random.dirichlet(alpha * prior)",
                "tests/data/test_partition.py",
            ),
            (
                "Dirichlet without alpha",
                "data/partition.py",
                "random.dirichlet(np.full(clients, alpha), len(pools))",
                "random.dirichlet(np.full(clients, 1.0), len(pools))",
                "tests/data/test_partition.py",
            ),
            (
                "classes are dealt in order, not at random",
                "data/partition.py",
                "np.lexsort((random.random(len(pools)), load))",
                "np.lexsort((np.arange(len(pools)), load))",
                "tests/data/test_partition.py",
            ),
        )
    ),
]
