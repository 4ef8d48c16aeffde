"""Mutants of objectives, drift corrections, gradient estimators and the local loop."""

from __future__ import annotations

from tests.mutants.mutant import within

TWINS = "tests/test_against_twins.py::test_"
LOOP = "tests/client/test_local_loop.py"
SCAFFOLD = f"{TWINS}scaffold {TWINS}scaffold_where_a_client_takes_no_step {TWINS}partial_participation"
NOISE = "tests/client/test_noise.py"

of = within("client/")

MUTANTS = [
    *of(
        "objective/proximal.py",
        f"{TWINS}fedprox",
        "Prop 1",
        ("mu counts twice", "Terms(curvature=self.mu, center=x)", "Terms(curvature=2 * self.mu, center=x)"),
    ),
    *of(
        "objective/feddyn.py",
        f"{TWINS}feddyn",
        "FedDyn",
        ("lambda_i has the other sign in the objective", 'linear=-memory["lambda"]', 'linear=memory["lambda"]'),
        (
            "lambda_i moves the other way",
            'memory["lambda"] - self.alpha * (W - x)',
            'memory["lambda"] + self.alpha * (W - x)',
        ),
        ("lambda_i is replaced", 'memory["lambda"] - self.alpha * (W - x)', "-self.alpha * (W - x)"),
    ),
    *of(
        "objective/fedsplit.py",
        f"{TWINS}fedsplit",
        "App. J",
        ("the point is not reflected", 'U = 2 * x - memory["z"]', 'U = memory["z"]'),
        ("steps start at x", "Terms(start=U, curvature", "Terms(start=U * 0 + x, curvature"),
        ("z_i moves once", 'memory["z"] + 2 * (W - x)', 'memory["z"] + (W - x)'),
        ("s multiplies", "curvature=1 / self.s", "curvature=self.s"),
    ),
    *of(
        "objective/moon.py",
        f"{TWINS}moon {TWINS}moon_options {TWINS}moon_partial_participation",
        "MOON",
        ("the temperature multiplies", "], 1) / self.temperature", "], 1) * self.temperature"),
        (
            "global and previous model are swapped",
            "for model in (self.x if self.x.dim() == 1 else self.x[row], self.previous[row]):",
            "for model in (self.previous[row], self.x if self.x.dim() == 1 else self.x[row]):",
        ),
        (
            "the previous model is never renewed",
            'return {"previous": W.clone()}',
            'return {"previous": memory["previous"]}',
        ),
        ("mu is ignored", "return self.mu * F.cross_entropy", "return F.cross_entropy"),
        ("the previous model is the global one", "self.x[row], self.previous[row]):", "self.x[row], self.x):"),
    ),
    *of(
        "objective/ditto.py",
        f"{TWINS}ditto",
        "Ditto",
        ("the own model starts at x", 'Terms(start=memory["own"], curvature=self.lam', "Terms(curvature=self.lam"),
        ("the tie is twice as strong", "curvature=self.lam", "curvature=2 * self.lam"),
    ),
    *of(
        "drift/scaffold.py",
        SCAFFOLD,
        "drift.control",
        (
            "the correction has the other sign",
            'broadcast["control"] - memory["control"]',
            'memory["control"] - broadcast["control"]',
        ),
        (
            "c_i+ keeps c",
            'torch.where(moved, slope - broadcast["control"], 0.0)',
            "torch.where(moved, slope, 0.0)",
        ),
        ("c_i is replaced, not moved", '{"control": memory["control"] + change}', '{"control": change}'),
        (
            "c ignores the share of the cohort",
            'state["control"] + share * mean["control"]',
            'state["control"] + mean["control"]',
        ),
        ("c is replaced", 'state["control"] = state["control"] + share', 'state["control"] = share'),
        (
            "updates are not divided by the steps",
            "update / torch.where(moved, total, 1.0)",
            "update / torch.where(moved, 1.0, 1.0)",
        ),
    ),
    *of(
        "drift/gradient_correction.py",
        f"{TWINS}fedlin {TWINS}fedtrack",
        "Thm 9; fedtrack.as_printed",
        (
            "the correction has the other sign",
            'broadcast["gradient"] - memory["anchor"]',
            'memory["anchor"] - broadcast["gradient"]',
        ),
        (
            "the own gradient is not subtracted",
            'broadcast["gradient"] - memory["anchor"]',
            'broadcast["gradient"] - 0 * memory["anchor"]',
        ),
    ),
    *of(
        "gradient/noisy.py",
        f"{NOISE}",
        "fedlin_more.noise",
        ("sigma is a variance", "alpha=self.sigma", "alpha=self.sigma**0.5"),
        ("sigma is squared", "alpha=self.sigma", "alpha=self.sigma**2"),
        (
            "the exchanged gradients are exact",
            "return _Noise(chunk.full(C), chunk, self.sigma, -1",
            "return _Noise(chunk.full(C), chunk, 0.0, -1",
        ),
        (
            "the exchanged gradient has the noise of the first step",
            "self.sigma, -1, list(range(C))",
            "self.sigma, 0, list(range(C))",
        ),
        (
            "every step has the noise of the first",
            "self.sigma, k, list(range(active))",
            "self.sigma, 0, list(range(active))",
        ),
    ),
    *of(
        "chunk.py",
        f"{NOISE} {TWINS}fedtrack {LOOP}",
        "fedlin_more.noise; fedtrack.as_printed",
        ("all clients have the same noise", 'self.context.clients[row], "noise", k)', '"noise", k)'),
        (
            "every round has the same noise",
            'self.context.round, self.context.clients[row], "noise"',
            '0, self.context.clients[row], "noise"',
        ),
        ("noise is uniform", "torch.randn(like.shape, generator=source", "torch.rand(like.shape, generator=source"),
        ("a short last block weighs as the others", "min(block, n - j * block) / n", "min(block, n) / n"),
    ),
    *of(
        "chunk.py",
        f"{LOOP}",
        "",
        ("every epoch has the same order", '"batches", epoch)', '"batches", 0)'),
        ("batches overlap", "[j * b : (j + steps) * b]", "[max(j * b - 1, 0) : max((j + steps) * b - 1, steps * b)]"),
    ),
    *of(
        "gradient/iag.py",
        f"{TWINS}fedtrack",
        "fedtrack.as_printed; FedTrack Lemma 5; fedtrack.cost",
        ("components are visited one step late", "(k - 1) % self.rule.components", "(k - 2) % self.rule.components"),
        ("the first step refreshes a component too", "if self.k > 0:", "if self.k >= 0:"),
        ("the old gradient is not taken away", "share * (new - old)", "share * new"),
        ("components weigh the same", "share * (new - old)", "(new - old)"),
        ("the table is not renewed", "table[chosen[row]] = new[row]", "table[chosen[row]] = table[chosen[row]]"),
        (
            "no table where components are visited twice",
            "return steps - 1 > self.components(n)",
            "return steps - 1 > 2 * self.components(n)",
        ),
    ),
    *of(
        "local.py",
        f"{LOOP} {TWINS}fedavg {TWINS}scaffold",
        "clients.as_printed[momentum]; drift.control",
        (
            "clients take one step less",
            "for k in range(context.steps[0]):",
            "for k in range(max(1, context.steps[0] - 1)):",
        ),
        (
            "the sum of the steps is the last step",
            'total[:n] += now["eta"]\n        if n < C',
            'total[:n] = now["eta"]\n        if n < C',
        ),
        ("the direction is turned", "Y += move if terms.moves is None", "Y -= move if terms.moves is None"),
    ),
    *of(
        "context.py",
        f"tests/client/step/test_armijo_rule.py {TWINS}minibatches",
        "fedsls_more.starts",
        ("growth^(n/b)", "torch.split(self.batch / self.size, 1)", "torch.split(self.size / self.batch, 1)"),
    ),
]
