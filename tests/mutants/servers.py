"""Mutants of the server rules and read-outs."""

from __future__ import annotations

from tests.mutants.mutant import within

TWINS = "tests/test_against_twins.py::test_"
FREE = "tests/server/test_parameter_free.py"
READOUT = "tests/training/test_readout.py"
SERVERS = "servers.as_printed"

of = within("server/")

MUTANTS = [
    *of(
        "average.py",
        f"{TWINS}fedavg_server_lr",
        f"{SERVERS}[FedAvg]",
        ("the server's rate is ignored", "x - self.lr * mean.update", "x - mean.update"),
        ("the server goes uphill", "x - self.lr * mean.update", "x + self.lr * mean.update"),
    ),
    *of(
        "momentum.py",
        f"{TWINS}fedavgm",
        f"{SERVERS}[FedAvgM]",
        (
            "momentum weighs the update by 1 - beta",
            "mean.update + self.beta * state",
            "(1 - self.beta) * mean.update + self.beta * state",
        ),
        (
            "momentum is not kept",
            'state["v"] = mean.update + self.beta * state["v"]',
            'state["v"] = mean.update + self.beta * mean.update',
        ),
    ),
    *of(
        "adaptive.py",
        f"{TWINS}fedadam {TWINS}fedadagrad {TWINS}fedyogi {TWINS}fedadam_as_in_001",
        f"{SERVERS}[Fed]",
        (
            "FedAdagrad forgets",
            'state["v"] = state["v"] + mean.update**2',
            'state["v"] = 0.9 * state["v"] + mean.update**2',
        ),
        (
            "FedAdagrad's momentum is not normalised",
            'state["m"] = self.beta * state["m"] + (1 - self.beta) * mean.update',
            'state["m"] = self.beta * state["m"] + mean.update',
        ),
        ("FedAdam swaps its betas", "v: Tensor = b2 * state", "v: Tensor = b1 * state"),
        ("FedAdam always corrects the bias", "if self.bias_correction:\n", "if True:\n"),
        ("FedAdam corrects m with b2", "m / (1 - b1**t), v / (1 - b2**t)", "m / (1 - b2**t), v / (1 - b2**t)"),
        (
            "FedAdam starts v at tau",
            "0.0 if self.bias_correction else self.tau**2",
            "0.0 if self.bias_correction else self.tau",
        ),
        (
            "FedAdam adds tau inside the root",
            "return x - self.lr * m / (v.sqrt() + self.tau)",
            "return x - self.lr * m / (v + self.tau).sqrt()",
        ),
        (
            "FedYogi's sign is turned",
            'state["v"] - (1 - b2) * square * torch.sign',
            'state["v"] + (1 - b2) * square * torch.sign',
        ),
        (
            "FedYogi is FedAdam",
            '(1 - b2) * square * torch.sign(state["v"] - square)',
            '(1 - b2) * (state["v"] - square)',
        ),
    ),
    *of(
        "fedexp.py",
        f"tests/server/test_extrapolation.py {TWINS}fedexp_overparameterised {TWINS}fedexp_exact_and_capped {READOUT}::test_fedexps_own_readout_is_the_mean_of_two {TWINS}fedexp",
        f"fedexp.by_hand; {SERVERS}[FedExP]; read_outs",
        ("FedExP without the factor 2", "(1 if self.exact else 2)", "(1 if self.exact else 1)"),
        ("exact projections have the factor 2", "(1 if self.exact else 2)", "(2 if self.exact else 2)"),
        ("|Dbar| instead of |Dbar|^2", "(square + self.eps)", "(square.sqrt() + self.eps)"),
        ("eps outside of the factor 2", "* (square + self.eps)", "* square + self.eps"),
        ("the step may be below 1", ".clamp(min=1, max=self.lr_max)", ".clamp(min=0, max=self.lr_max)"),
        ("no cap", ".clamp(min=1, max=self.lr_max)", ".clamp(min=1)"),
        ("the extrapolation is not applied", "return x - eta * mean.update", "return x - mean.update"),
        (
            "the previous iterate is the new one",
            'state["eta"], state["previous"] = eta, x\n',
            'state["eta"], state["previous"] = eta, x - eta * mean.update\n',
        ),
        ("the read-out is the last iterate", "/ 2 if self.last_two else x", "/ 2 if not self.last_two else x"),
        ("the read-out weighs 2 to 1", '(x + state["previous"]) / 2', '(2 * x + state["previous"]) / 3'),
    ),
    *of(
        "fedexpm.py",
        f"{TWINS}fedexpm",
        f"{SERVERS}[FedExP-M]; Lemma 11",
        ("s forgets by beta, not beta / 2", "mean.square + self.beta / 2 * state", "mean.square + self.beta * state"),
        ("|Dbar|^2 instead of |v|^2", "below = 2 * (sq(v) + self.eps)", "below = 2 * (sq(mean.update) + self.eps)"),
        (
            "at least 1, as FedExP",
            "torch.where(below > 0, s / below, 1.0)  #",
            "torch.where(below > 0, s / below, 1.0).clamp(min=1)  #",
        ),
        ("steps follow Dbar, not v", 'return x - state["eta"] * v', 'return x - state["eta"] * mean.update'),
        ("without the factor 2", "below = 2 * (sq(v)", "below = (sq(v)"),
    ),
    *of(
        "fedexprox.py",
        f"{TWINS}fedexprox {TWINS}fedexprox_where_the_updates_cancel",
        f"{SERVERS}[FedExProx]; objectives.extrapolated",
        ("GraDS with a factor 1/2", "mean.square / below, 1.0)", "mean.square / (2 * below), 1.0)"),
        ("GraDS for every alpha", 'diversity if self.alpha == "grads" else x.new_tensor(self.alpha)', "diversity"),
    ),
    *of(
        "fednova.py",
        f"{TWINS}fednova {TWINS}fednova_prox_and_server_lr",
        "Prop 2",
        ("FedNova without tau_eff", 'self.lr * mean.fields["effective_steps"] * mean.update', "self.lr * mean.update"),
    ),
    *of(
        "feddyn.py",
        f"{TWINS}feddyn {TWINS}partial_participation",
        "FedDyn",
        ("h ignores the share of the cohort", "self.alpha * mean.share * mean.update", "self.alpha * mean.update"),
        ("h has the other sign", 'state["h"] + self.alpha * mean.share', 'state["h"] - self.alpha * mean.share'),
        ("h is not divided by alpha", 'state["h"] / self.alpha', 'state["h"]'),
    ),
    *of(
        "fedsplit.py",
        f"{TWINS}fedsplit",
        "App. J",
        ("FedSplit takes one Dbar", "x - 2 * mean.update", "x - mean.update"),
    ),
    *of(
        "dog.py",
        f"{FREE} {TWINS}feddog",
        f"{SERVERS}[DoG]",
        (
            "DoG forgets the largest distance",
            'r = state["r"] = torch.maximum(state["r"], norm(x - state["x0"]))',
            'r = torch.maximum(state["r"], norm(x - state["x0"]))',
        ),
        ("DoG divides by the sum without root", "r / squares.sqrt(), 0.0)", "r / squares, 0.0)"),
        ("DoG's first step without |x_0|", "self.r_eps * (1 + norm(x))", "self.r_eps * norm(x) / norm(x)"),
    ),
    *of(
        "dadaptation.py",
        f"{TWINS}feddadapt {TWINS}feddadapt_momentum",
        f"{SERVERS}[D-Ada]",
        ("d without the factor 2", '2 * state["sum"] / norm(s)', 'state["sum"] / norm(s)'),
        ("d may fall", 'torch.maximum(state["d"], found)', 'torch.where(found > 0, found, state["d"])'),
        (
            "the sum uses the new s",
            'eta * dot(mean.update, state["s"])\n',
            'eta * dot(mean.update, state["s"] + eta * mean.update)\n',
        ),
        (
            "g_0 is that of every round",
            'torch.where(state["g0"] > 0, state["g0"], norm(mean.update))',
            "norm(mean.update)",
        ),
    ),
    *of(
        "prodigy.py",
        f"{TWINS}fedprodigy {TWINS}fedprodigy_options",
        f"{SERVERS}[Prodigy]",
        ("b3 without root", "self.betas[1] ** 0.5", "self.betas[1] ** 1.0"),
        ("the product has the other sign", 'dot(g, state["x0"] - x)', 'dot(g, x - state["x0"])'),
        ("the Euclidean norm of s", "length = s.abs().sum()", "length = (s * s).sum().sqrt()"),
        ("the new d in this step", "return x - d * m / (v.sqrt()", 'return x - state["d"] * m / (v.sqrt()'),
    ),
    *of(
        "schedule_free.py",
        f"{TWINS}fedschedulefree",
        f"{SERVERS}[schedule-free]; read_outs",
        ("the mean counts the start", '(z - state["x"]) / state["t"]', '(z - state["x"]) / (state["t"] + 1)'),
        ("beta weighs z", "(1 - self.beta) * z + self.beta * average", "self.beta * z + (1 - self.beta) * average"),
        ("the read-out is y", 'return state["x"]', "return x"),
    ),
    *of(
        "hypergradient.py",
        f"{FREE} {TWINS}fedhyper",
        f"{SERVERS}[FedHyper]",
        ("the step falls where updates agree", 'state["eta"] + dot(', 'state["eta"] - dot('),
        ("no lower limit", "eta.clamp(1 / self.bound, self.bound)", "eta.clamp(max=self.bound)"),
        ("the last update is never kept", "self.bound), mean.update\n", 'self.bound), state["last"]\n'),
    ),
    *of(
        "auto.py",
        "tests/server/test_auto.py",
        "servers.of_auto",
        ("auto's s forgets by beta, not beta^2", "mean.square + beta**2 * state", "mean.square + beta * state"),
        (
            "auto's rho ignores the share of the cohort",
            "self.rho * (1 - mean.participants / mean.clients) * s",
            "self.rho * s",
        ),
        ("auto with FedExP's factor 2", "below = 3 * (", "below = 2 * ("),
        (
            "auto's beta and server step fall with K without root",
            "math.sqrt(MANY / max(MANY, mean.steps))",
            "(MANY / max(MANY, mean.steps))",
        ),
        (
            "auto's server step ignores the number of local steps",
            "share * eta.clamp(min=1) + (1 - share)",
            "eta.clamp(min=1)",
        ),
        ("auto's moves have no longest length", "torch.minimum(s / below, (s / sq(v)).sqrt())", "s / below"),
        ("auto's reach may fall below 1", ".clamp(1, FARTHEST)", ".clamp(0.1, FARTHEST)"),
        ("auto's reach grows as fast as it shrinks", "steadiness / 2, steadiness)", "steadiness, steadiness)"),
        (
            "auto's momentum weighs the update by 1 - beta",
            'v = state["v"] = mean.update + beta * state["v"]',
            'v = state["v"] = (1 - beta) * mean.update + beta * state["v"]',
        ),
    ),
]
