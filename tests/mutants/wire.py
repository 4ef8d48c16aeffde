"""Mutants of compression, error feedback, the weighted mean, and the exchanges around them."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

TWINS = "tests/test_against_twins.py::test_"
COMPRESSED = f"{TWINS}fedlin_compressed {TWINS}compressed_updates"
FEEDBACK = "fedlin_more.virtual_iterate"

MUTANTS = [
    *(
        Mutant(name, "wire/feedback.py", old, new, f"tests/wire/test_feedback.py {COMPRESSED}", FEEDBACK)
        for name, old, new in (
            ("the error kept has the other sign", '"residual": wanted - sent', '"residual": sent - wanted'),
            ("the error kept forgets earlier ones", '"residual": wanted - sent', '"residual": V - sent'),
            ("the error is not sent", 'wanted = past["residual"] + V', "wanted = V"),
            ("half of the error is sent", 'wanted = past["residual"] + V', 'wanted = past["residual"] / 2 + V'),
            ("the first message is compressed", 'first = past["sent"] == 0', 'first = past["sent"] == -1'),
            (
                "every message is whole",
                '"sent": torch.ones_like(past["sent"])',
                '"sent": torch.zeros_like(past["sent"])',
            ),
        )
    ),
    *(
        Mutant(
            name,
            "wire/compress.py",
            old,
            new,
            f"tests/wire/test_compress.py {COMPRESSED} {TWINS}ties_go_to_the_lowest_index",
            laws,
        )
        for name, old, new, laws in (
            (
                "TOP-k keeps one entry less",
                "return min(d, k) if isinstance(k, int)",
                "return max(1, min(d, k) - 1) if isinstance(k, int)",
                "Lemma 14",
            ),
            ("TOP-k keeps the largest, not those of largest magnitude", "size = V.abs()", "size = V", "Lemma 14"),
            ("TOP-k keeps all ties", "equal.cumsum(1) <= room", "equal.cumsum(1) >= 0", ""),
            ("random-k does not scale", "(d / k if self.unbiased else 1.0)", "(1.0 if self.unbiased else 1.0)", ""),
            ("random-k always scales", "(d / k if self.unbiased else 1.0)", "(d / k)", ""),
            (
                "quantisation rounds down",
                "torch.floor(V / unit + torch.stack(luck))",
                "torch.floor(V / unit + 0 * torch.stack(luck))",
                "",
            ),
            ("bytes without indices", "k * (itemsize + (4 if", "k * (itemsize + (0 if", ""),
            ("a share of the entries is rounded down", "min(d, round(k * d))", "min(d, int(k * d))", ""),
        )
    ),
    *(
        Mutant(
            name,
            "wire/mean.py",
            old,
            new,
            f"tests/wire/test_mean.py {TWINS}fedavg_weights_by_number",
            "servers.weighted",
        )
        for name, old, new in (
            ("rows are not weighted", "sums = {k: v * column for k, v in sums.items()}", "sums = dict(sums)"),
            ("the mean is a sum", "{k: v / total.weight for k, v in total.fields.items()}", "dict(total.fields)"),
        )
    ),
    *(
        Mutant(name, "client/exchange.py", old, new, tests, laws)
        for name, old, new, tests, laws in (
            (
                "S is of the mean's root",
                'fields["update"], fields["square"] = sent, sq(sent)',
                'fields["update"], fields["square"] = sent, sq(sent).sqrt()',
                f"{TWINS}fedexp",
                "fedexp.by_hand",
            ),
            (
                "FedNova's updates are not divided",
                'fields["update"], fields["raw"] = sent / steps, sent',
                'fields["update"], fields["raw"] = sent, sent',
                f"{TWINS}fednova",
                "Prop 2",
            ),
            (
                "exchanged gradients without weight decay",
                "G.add_(x, alpha=options.weight_decay)",
                "G.add_(x, alpha=0)",
                f"{TWINS}weight_decay",
                "protocol.weight",
            ),
            (
                "the uncompressed gradient is sent",
                'return Upload({"gradient": sent}, metrics',
                'return Upload({"gradient": G}, metrics',
                COMPRESSED,
                FEEDBACK,
            ),
            (
                "the compressed gradient is subtracted",
                '**past, "anchor": G, "anchor_loss": L}',
                '**past, "anchor": sent, "anchor_loss": L}',
                COMPRESSED,
                FEEDBACK,
            ),
            (
                "weight decay counts twice in IAG",
                'memory["anchor"] - options.weight_decay * repeat',
                'memory["anchor"] - 0 * options.weight_decay * repeat',
                f"{TWINS}fedtrack_weight_decay",
                "protocol.weight",
            ),
            (
                "shared steps repeat the batches of the personal ones",
                "lambda k, n: oracles(first + k, n)",
                "lambda k, n: oracles(k, n)",
                "tests/training/test_personal.py",
                "",
            ),
        )
    ),
    *(
        Mutant(name, "training/round.py", old, new, tests, laws)
        for name, old, new, tests, laws in (
            (
                "the share of the cohort is 1",
                "share = updates.reply.weight / setup.weight",
                "share = 1.0",
                f"{TWINS}partial_participation",
                "FedDyn; drift.control",
            ),
            (
                "the down-link is not compressed",
                "return sent[0], past or state.down, size[0]",
                "return mean, past or state.down, size[0]",
                COMPRESSED,
                FEEDBACK,
            ),
            (
                "the server's error is not kept",
                "return sent[0], past or state.down, size[0]",
                "return sent[0], state.down, size[0]",
                COMPRESSED,
                FEEDBACK,
            ),
            (
                "the average weighs iterates equally",
                "state.average + 9 / (state.round + 9)",
                "state.average + 1 / (state.round + 1)",
                "tests/training/test_readout.py",
                "read_outs",
            ),
            (
                "the average starts with x_0",
                "state.average + 9 / (state.round + 9)",
                "state.average + 9 / (state.round + 10)",
                "tests/training/test_readout.py",
                "read_outs",
            ),
            (
                "drift state is that of the round before",
                "        drift=drift,\n",
                "        drift=state.drift,\n",
                f"{TWINS}scaffold",
                "drift.control",
            ),
            (
                "the cohort is that of round 0",
                'generator(seed, t, "cohort", *again)',
                'generator(seed, 0, "cohort", *again)',
                "tests/algorithm/test_sampling.py",
                "drift.participation",
            ),
            (
                "servers are told the most local steps, not the median",
                "steps = median(tau",
                "steps = max(tau",
                "tests/training/test_round.py",
                "",
            ),
            (
                "the down-link draws the same in every round",
                'generator(setup.task.seed, state.round, "down")',
                'generator(setup.task.seed, 0, "down")',
                "tests/wire/test_feedback.py",
                "",
            ),
        )
    ),
    *(
        Mutant(name, "algorithm/sampling.py", old, new, "tests/algorithm/test_sampling.py", "drift.participation")
        for name, old, new in (
            (
                "the first clients are drawn more often",
                "sample(range(len(sizes)), self.size)",
                "sample(range(max(self.size, len(sizes) - 1)), self.size)",
            ),
            ("Bernoulli with 1 - p", "(luck < self.p)", "(luck >= self.p)"),
            ("weights by 1/n", "keys /= torch.from_numpy(", "keys *= torch.from_numpy("),
        )
    ),
    Mutant(
        "a share of the clients is rounded down",
        "algorithm/sampling.py",
        "max(1, round(cohort * clients))",
        "max(1, int(cohort * clients))",
        "tests/algorithm/test_sampling.py",
    ),
]
