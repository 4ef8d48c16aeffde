"""Mutants of what happens rarely: schedules, corrections, losses below their bound, batches without gradient, auto's tensors."""

from __future__ import annotations

from tests.mutants.mutant import within

STEP = "tests/client/step/test_"
TORCH = f"{STEP}torch_rules.py"
PRINTED = "clients.as_printed"
FROM_LOSS = "clients.corrected; clients.below; clients.beside"
PLAIN = 'getattr(oracle, "plain", None) or (L, G)'
AUTO = "tests/server/test_auto.py"

of = within("")

MUTANTS = [
    *of(
        "client/step/constant.py",
        TORCH,
        f"{PRINTED}[FedLin]",
        (
            "FedLin's step has no schedule",
            "rate(self.lr, self.schedule, context.round, context.rounds) / context.tau",
            "self.lr / context.tau",
        ),
    ),
    *of(
        "client/step/momentum.py",
        TORCH,
        f"{PRINTED}[momentum]; servers.effective",
        ("momentum has no schedule", "rate(self.lr, self.schedule,", "rate(self.lr, None,"),
        ("a_i of momentum counts one step less", "(1 - rho**tau)", "(1 - rho ** (tau - 1))"),
        (
            "momentum is Nesterov's",
            'return -state["eta"] * state["v"]',
            'return -state["eta"] * (G + self.beta * state["v"])',
        ),
    ),
    *of(
        "client/step/adaptive.py",
        TORCH,
        f"{PRINTED}[Ada]",
        (
            "Adam has no schedule",
            'rate(self.lr, self.schedule, context.round, context.rounds))\n        return {"eta": eta, "m"',
            'self.lr)\n        return {"eta": eta, "m"',
        ),
        (
            "Adagrad has no schedule",
            'rate(self.lr, self.schedule, context.round, context.rounds))\n        return {"eta": eta, "v"',
            'self.lr)\n        return {"eta": eta, "v"',
        ),
    ),
    *of(
        "client/step/adamw.py",
        TORCH,
        f"{PRINTED}[AdamW]",
        (
            "AdamW has no schedule",
            "Adam(self.lr, self.betas, self.eps, self.schedule)",
            "Adam(self.lr, self.betas, self.eps)",
        ),
        ("AdamW's decay has no schedule", 'self.weight_decay * state["eta"] * W', "self.weight_decay * self.lr * W"),
        (
            "AdamW's decay enters the moments",
            'self._adam.step(W, L, G, state, oracle) - self.weight_decay * state["eta"] * W',
            "self._adam.step(W, L, G + self.weight_decay * W, state, oracle)",
        ),
    ),
    *of(
        "client/step/armijo.py",
        f"{STEP}armijo_rule.py",
        "fedsls_more.searches",
        ("gradients below 1e-4 count as zero", "square.sqrt() < TINY", "square < TINY"),
        ("a failed search takes 1e-3", "FALLBACK = 1e-6", "FALLBACK = 1e-3"),
        ("a failed search takes its last trial", "torch.where(failed, FALLBACK, ", "torch.where(failed, eta, "),
        ("a search has 50 trials", "TRIALS = 100 ", "TRIALS = 50 "),
        (
            "a vanishing gradient ends all searches",
            'torch.where(still, self._restart(state["eta"], state["growth"]), state["start"])',
            'self._restart(state["eta"], state["growth"])',
        ),
    ),
    *of(
        "client/step/delta_sgd.py",
        f"{STEP}delta_sgd_rule.py",
        "delta_sgd.no_difference; delta_sgd.step_sizes",
        (
            "theta is what was allowed",
            'state["y"] = eta, eta / last, W.clone()',
            'state["y"] = eta, (1 + self.delta * state["theta"]).sqrt(), W.clone()',
        ),
        ("a model that did not move bounds the step", "(dy > 0) & (dg > 0)", "dg > 0"),
    ),
    *of(
        "client/step/polyak.py",
        f"{STEP}polyak_rule.py",
        FROM_LOSS,
        ("Polyak steps are negative below f*", "+ 1e-8)).clamp(min=0)", "+ 1e-8))"),
        ("Polyak's step from the corrected gradient", PLAIN, "L, G"),
        ("Polyak moves along the plain gradient", 'return -state["eta"] * G', 'return -state["eta"] * g'),
    ),
    *of(
        "client/step/decsps.py",
        f"{STEP}loss_rules.py tests/test_against_twins.py::test_steps_from_the_loss_where_a_client_has_none",
        FROM_LOSS,
        ("DecSPS steps are negative below f*", "torch.inf).clamp(min=0)", "torch.inf)"),
        ("DecSPS's step from the corrected gradient", PLAIN, "L, G"),
        ("DecSPS stops where a batch has no gradient", "/ square, torch.inf)", "/ square, 0.0)"),
    ),
    *of(
        "client/step/ngn.py",
        f"{STEP}loss_rules.py",
        FROM_LOSS,
        ("NGN takes negative losses", "L.clamp(min=0)", "L"),
        ("NGN's step from the corrected gradient", PLAIN, "L, G"),
    ),
    *of(
        "client/step/capped_polyak.py",
        f"{STEP}capped_polyak.py {AUTO}::test_auto_equals_its_twin",
        "auto.steps",
        ("auto's cap does not rise", "drift.clamp(max=(t + 1) / WARM_UP) if layers > 1", "drift if layers > 1"),
        ("auto's cap falls with K without root", "context.tau.clamp(min=MANY)).sqrt()", "context.tau.clamp(min=MANY))"),
        ("auto's clients ignore the reach", 'sent.get("reach", 1.0)', "1.0"),
        ("auto's first target is f", "2 * L.clamp(max=0)", "L.clamp(max=0)"),
        ("auto's mean squares are sums", '/ state["taken"]\n', "\n"),
        ("auto's weights are not stretched", ".clamp(1, STRETCH)", ".clamp(1, 1)"),
        (
            "auto's sudden gradients count in full",
            '(SUDDEN * ratio(state["squares"], squares).sqrt()).clamp(max=1)',
            '(SUDDEN * ratio(state["squares"], squares).sqrt()).clamp(min=1, max=1)',
        ),
        (
            "auto's gradients are limited without root",
            'ratio(state["squares"], squares).sqrt()',
            'ratio(state["squares"], squares)',
        ),
        ("auto's steps are negative below f*", '(L - state["target"]).clamp(min=0)', '(L - state["target"])'),
        (
            "auto's biases have the arithmetic mean",
            "torch.where(known, rms, 1.0).log().sum() / known.sum().clamp(min=1)",
            "(torch.where(known, rms, 0.0).sum() / known.sum().clamp(min=1)).log()",
        ),
    ),
    *of(
        "server/auto.py",
        f"{AUTO}::test_auto_equals_its_twin tests/training/test_guard.py",
        "auto.scales; servers.of_auto",
        (
            "auto's sizes are those of the first model",
            'torch.maximum(radii(new, mean.shapes), state["radii"])',
            'state["radii"]',
        ),
        ("auto's sizes are those of the last model", "radii(new, mean.shapes)", "radii(x, mean.shapes)"),
        (
            "auto's mean squares are of this round",
            "MEMORY * old + (1 - MEMORY) * seen",
            "(1 - MEMORY) * old + MEMORY * seen",
        ),
        ("auto's target is nearer", "lowest - torch.maximum(", "lowest - torch.minimum("),
        ("auto's lowest loss is the last", 'torch.minimum(state["lowest"], loss)', "loss"),
        ("auto's server stretches no weights", "balanced(r, q, sizes, biases(mean.shapes, x.device))", "r"),
        ("auto's server does not send mean squares", '"scale", "squares", "target"', '"scale", "target"'),
        ("auto's server step is below 1", "share * eta.clamp(min=1)", "share * eta"),
    ),
    *of(
        "server/fedexp.py",
        "tests/server/test_extrapolation.py",
        "servers.private",
        ("FedExP does not know the noise", "sq(mean.update) - mean.noise", "sq(mean.update)"),
        ("FedExP extrapolates noise", "(below > 0) & (square", "(below > 0) | (square"),
    ),
    *of(
        "server/fedexpm.py",
        "tests/test_against_twins.py::test_fedexpm tests/training/test_readout.py",
        "read_outs",
        ("FedExP-M returns the last iterate", "/ 2 if self.last_two else x", "/ 2 if not self.last_two else x"),
    ),
    *of(
        "client/objective/moon.py",
        "tests/client/test_corrected.py",
        "MOON",
        ("MOON's other models are in training mode", "replica.module.eval()", "replica.module.train()"),
    ),
    *of(
        "client/exchange.py",
        "tests/test_against_twins.py::test_ditto_weight_decay",
        "Ditto",
        (
            "Ditto's own models have no weight decay",
            "chunk.context, terms, None, options).W",
            "chunk.context, terms, None, LocalOptions()).W",
        ),
    ),
    *of(
        "client/chunk.py",
        "tests/training/test_train.py::test_dropout_differs_by_client_step_round_and_seed",
        "",
        (
            "dropout is that of the first round",
            'context.round, context.clients[i], "forward", k)',
            '0, context.clients[i], "forward", k)',
        ),
        ("dropout is that of the first step", '"forward", k)', '"forward", 0)'),
    ),
    *of(
        "engine/evaluation.py",
        "tests/training/test_stop.py::test_the_worst_decile_is_the_mean_of_a_tenth_of_the_clients",
        "",
        ("the worst decile is rounded up", "len(each) // 10)", "-(-len(each) // 10))"),
        ("the worst decile is the best", "each[::-1] if losses else each", "each if losses else each[::-1]"),
    ),
    *of(
        "training/fine_tune.py",
        "tests/training/test_fine_tune.py::test_batches_are_those_of_the_seed",
        "",
        ("fine-tuning ignores the seed", "seed=self.seed", "seed=0"),
    ),
    *of(
        "research/interval.py",
        "tests/research/test_interval.py",
        "",
        ("intervals have one degree of freedom more", "min(n - 1, len(STUDENT)) - 1", "min(n, len(STUDENT)) - 1"),
        ("an interval with six seeds is another", "2.571", "2.517"),
    ),
    *of(
        "research/papers/tasks.py",
        "tests/research/papers/test_protocol.py::test_a_seed_is_that_of_data_model_and_training",
        "",
        ("all seeds have the same data", '"data.seed": seed', '"data.seed": 0'),
        ("all seeds start from the same model", '"model.seed": seed', '"model.seed": 0'),
    ),
]
