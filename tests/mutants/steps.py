"""Mutants of the client step rules and their schedules."""

from __future__ import annotations

from tests.mutants.mutant import within

TWINS = "tests/test_against_twins.py::test_"
TORCH = "tests/client/step/test_torch_rules.py"
ARMIJO = "tests/client/step/test_armijo_rule.py"
DELTA = "tests/client/step/test_delta_sgd_rule.py"
LOSSES = "tests/client/step/test_loss_rules.py"
STEPS = "clients.as_printed"
STARTS = "fedsls_more.starts; fedsls.accepted_steps"
CURVATURE = "delta_sgd.one_curvature; delta_sgd.step_sizes"

of = within("client/step/")

MUTANTS = [
    *of(
        "constant.py",
        TORCH,
        f"{STEPS}[FedLin]; servers.effective",
        ("FedLin's step is not divided by tau", "context.rounds) / context.tau}", "context.rounds) / 1}"),
        (
            "FedNova's a_i with prox counts one step more",
            "(1 - s) ** tau.double()) / s",
            "(1 - s) ** (tau.double() + 1)) / s",
        ),
    ),
    *of(
        "schedule.py",
        f"{TORCH} {TWINS}fedavg_schedules",
        f"{STEPS}[constant]",
        (
            "exponential decay starts a round late",
            "return self.factor**round",
            "return self.factor ** max(0, round - 1)",
        ),
        ("steps of the schedule come a round late", "round >= a * rounds", "round > a * rounds"),
        ("the schedule is ignored", "return lr * factor", "return lr"),
    ),
    *of(
        "momentum.py",
        f"{TORCH} {TWINS}client_optimizers",
        f"{STEPS}[momentum]; servers.effective",
        (
            "momentum weighs the gradient by 1 - beta",
            'self.beta * state["v"] + G',
            'self.beta * state["v"] + (1 - self.beta) * G',
        ),
        (
            "steps follow the gradient, not the momentum",
            'return -state["eta"] * state["v"]',
            'return -state["eta"] * G',
        ),
    ),
    *of(
        "adaptive.py",
        f"{TORCH} {TWINS}client_optimizers",
        f"{STEPS}[Ada]",
        (
            "Adam's first moment without bias correction",
            'return -state["eta"] / (1 - b1**t) * m',
            'return -state["eta"] * m',
        ),
        ("Adam's second moment of |g|", "(1 - b2) * G**2", "(1 - b2) * G.abs()"),
        ("Adam's eps inside the root", "(1 - b2**t).sqrt() + self.eps)", "(1 - b2**t).sqrt() + self.eps**0.5)"),
        ("Adam swaps its betas", "b1, b2 = self.betas", "b2, b1 = self.betas"),
        ("Adam counts its steps from 0", 't = state["t"] = state["t"] + 1', 't = state["t"] = state["t"] + 2'),
        ("Adagrad forgets", 'state["v"] = state["v"] + G**2', 'state["v"] = 0.9 * state["v"] + G**2'),
        (
            "Adagrad without root",
            'return -state["eta"] * G / (state["v"].sqrt()',
            'return -state["eta"] * G / (state["v"]',
        ),
    ),
    *of(
        "adamw.py",
        f"{TORCH} {TWINS}client_optimizers",
        f"{STEPS}[AdamW]",
        ("AdamW's decay without the rate", 'self.weight_decay * state["eta"] * W', "self.weight_decay * W"),
        ("AdamW's decay grows the weights", "state, oracle) - self.weight_decay", "state, oracle) + self.weight_decay"),
    ),
    *of(
        "polyak.py",
        f"tests/client/step/test_polyak_rule.py {TWINS}fedsps_options {TWINS}fedsps",
        f"{STEPS}[Polyak]",
        ("the Polyak step divides by |g|", "self.c * sq(g) + 1e-8", "self.c * sq(g).sqrt() + 1e-8"),
        ("f* is added", "(L - self.f_star) / (self.c", "(L + self.f_star) / (self.c"),
        ("c multiplies instead of dividing", "(self.c * sq(g) + 1e-8)", "(sq(g) / self.c + 1e-8)"),
        ("smoothing compares with 1, not the last step", 'state["growth"] * state["last"])', 'state["growth"])'),
        ("the cap is a floor", "eta.clamp(max=self.lr_max)", "eta.clamp(min=self.lr_max)"),
    ),
    *of(
        "polyak.py",
        "tests/client/step/test_polyak_rule.py",
        "",
        ("a step of 0 bounds the next one", 'torch.where(eta > 0, eta, state["last"])', "eta"),
    ),
    *of(
        "capped_polyak.py",
        "tests/client/step/test_capped_polyak.py tests/server/test_auto.py",
        f"{STEPS}[auto]",
        (
            "auto's Polyak step without the factor 2",
            'torch.minimum(2 * (L - state["target"])',
            'torch.minimum((L - state["target"])',
        ),
        ("auto's cap falls a round early", "math.sqrt(1 + t / WARM_UP)", "math.sqrt(1 + (t + 1) / WARM_UP)"),
        ("auto's steps follow the gradient, not u", 'return -state["eta"] * U', 'return -state["eta"] * G'),
        ("auto's slope is |g|^2", "slope = dot(G, U)", "slope = dot(G, G)"),
    ),
    *of(
        "decsps.py",
        f"{LOSSES} {TWINS}feddecsps",
        f"{STEPS}[DecSPS]",
        ("the bound does not carry over", 'torch.minimum(polyak, state["bound"])', "polyak"),
        ("k is not counted from earlier rounds", "context.round * context.tau", "0 * context.tau"),
        ("c_k grows without root", 'self.c0 * state["k"].sqrt()', 'self.c0 * state["k"]'),
    ),
    *of(
        "ngn.py",
        f"{LOSSES} {TWINS}fedngn",
        f"{STEPS}[NGN]",
        ("NGN takes f instead of 2 f", "twice = 2 * L.clamp(min=0)", "twice = L.clamp(min=0)"),
        ("NGN without sigma in the denominator", "below = twice + self.sigma * sq(g)", "below = twice + sq(g)"),
    ),
    *of(
        "armijo.py",
        f"{ARMIJO} {TWINS}fedsls_resets {TWINS}fedsls_options",
        STARTS,
        (
            "the slope counts half",
            "L[some] - self.c * eta[some] * square[some]",
            "L[some] - self.c / 2 * eta[some] * square[some]",
        ),
        (
            "the slope has |g| instead of |g|^2",
            "self.c * eta[some] * square[some]",
            "self.c * eta[some] * square[some].sqrt()",
        ),
        ("the condition is turned around", "enough = value <= L[some]", "enough = value >= L[some]"),
        ("backtracks twice at once", "self.backtrack * eta[some])", "self.backtrack**2 * eta[some])"),
        (
            "reset max starts at the last step",
            'if self.reset == "max" else (growth',
            'if self.reset == "none" else (growth',
        ),
        (
            "growth ignores b/n",
            'context.growth(self.growth) if self.reset == "grow"',
            'self.growth * torch.ones_like(zero) if self.reset == "grow"',
        ),
        ("no cap on the grown start", "(growth * eta).clamp(max=self.lr_max)", "(growth * eta)"),
        ("the searched step is not taken", 'return -state["eta"] * G', 'return -state["start"] * G'),
        (
            "a row's search compares with another row",
            "loss_at(eta[some], open_rows)",
            "loss_at(eta[some].flip(0), open_rows)",
        ),
    ),
    *of(
        "delta_sgd.py",
        f"{DELTA} {TWINS}delta_sgd_options",
        CURVATURE,
        ("the quotient without 1/2", "self.gamma * dy / (2 * dg)", "self.gamma * dy / dg"),
        ("the quotient upside down", "self.gamma * dy / (2 * dg)", "self.gamma * dg / (2 * dy)"),
        (
            "growth without root",
            '(1 + self.delta * state["theta"]).sqrt() * last',
            '(1 + self.delta * state["theta"]) * last',
        ),
        ("growth without delta", '(1 + self.delta * state["theta"])', '(1 + state["theta"])'),
        (
            "theta upside down",
            'state["eta"], state["theta"], state["y"] = eta, eta / last',
            'state["eta"], state["theta"], state["y"] = eta, last / eta',
        ),
        ("the larger of the two bounds", "eta = torch.minimum(smooth, eta)", "eta = torch.maximum(smooth, eta)"),
        ("no quotient at all", "eta = torch.minimum(smooth, eta)", "eta = eta * 1"),
        ("the step before is taken", "return -eta * G", "return -last * G"),
        (
            "y is that of the first step",
            'state["y"] = eta, eta / last, W.clone()',
            'state["y"] = eta, eta / last, state.get("y", W.clone())',
        ),
        ("theta starts at 0", "torch.full_like(context.size, self.theta0)", "torch.zeros_like(context.size)"),
        ("reused gradients are those of the first step", 'state["g"] = G', 'state["g"] = state.get("g", G.clone())'),
    ),
]
