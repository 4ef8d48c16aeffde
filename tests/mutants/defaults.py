"""Mutants of defaults, of the recipes that combine parts, and of weights and closed forms."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

TWINS = "tests/test_against_twins.py::test_"
TESTS = "tests/algorithm/test_defaults.py"
RECIPES = "algorithm/recipes.py"

MUTANTS = [
    *(
        Mutant(name, file, old, new, TESTS)
        for name, file, old, new in (
            (
                "FedExP's eps is 1e-2",
                "server/fedexp.py",
                "eps: float = 1e-3\n    lr_max",
                "eps: float = 1e-2\n    lr_max",
            ),
            ("Delta-SGD's gamma is 1", "client/step/delta_sgd.py", "gamma: float = 2.0", "gamma: float = 1.0"),
            (
                "Delta-SGD reuses gradients",
                "client/step/delta_sgd.py",
                "reuse_gradient: bool = False",
                "reuse_gradient: bool = True",
            ),
            ("Armijo's c is 0.5", "client/step/armijo.py", "c: float = 0.1", "c: float = 0.5"),
            ("Polyak's c is 1", "client/step/polyak.py", "c: float = 0.5", "c: float = 1.0"),
            ("rates fall by 0.99", "client/step/schedule.py", "factor: float = 0.998", "factor: float = 0.99"),
            (
                "rates fall after 75 and 90 %",
                "client/step/schedule.py",
                "at: tuple[float, ...] = (0.5, 0.75)",
                "at: tuple[float, ...] = (0.75, 0.9)",
            ),
            (
                "MOON's temperature is 1",
                "client/objective/moon.py",
                "temperature: float = 0.5",
                "temperature: float = 1.0",
            ),
        )
    ),
    *(
        Mutant(name, RECIPES, old, new, tests, laws)
        for name, old, new, tests, laws in (
            (
                "FedExpSLS returns two iterates",
                "FedExP(eps, server_lr_max, last_two=False)",
                "FedExP(eps, server_lr_max)",
                TESTS,
                "read_outs",
            ),
            (
                "SCAFFOLD-ExP has no control variates",
                'FedExP(eps, server_lr_max), drift=Scaffold(), name="scaffold_exp")',
                'FedExP(eps, server_lr_max), name="scaffold_exp")',
                f"{TWINS}scaffold_exp",
                "drift.control",
            ),
            (
                "SCAFFOLD-ExP does not extrapolate",
                'FedExP(eps, server_lr_max), drift=Scaffold(), name="scaffold_exp")',
                'FedExP(eps, 1.0), drift=Scaffold(), name="scaffold_exp")',
                f"{TWINS}scaffold_exp",
                "drift.control",
            ),
            (
                "FedExProx's gamma multiplies",
                "Proximal(1 / gamma)",
                "Proximal(gamma)",
                f"{TWINS}fedexprox",
                "objectives.extrapolated",
            ),
            (
                "FedTrack's blocks are one larger",
                "gradient=IAG(block), drift=GradientCorrection()",
                "gradient=IAG(block + 1), drift=GradientCorrection()",
                f"{TWINS}fedtrack",
                "fedtrack.as_printed",
            ),
            (
                "FedSLS's line search has no growth",
                'Armijo(lr_max, c, backtrack, reset, growth), Average(server_lr), name="fedsls")',
                'Armijo(lr_max, c, backtrack, reset), Average(server_lr), name="fedsls")',
                f"{TWINS}fedsls_options",
                "fedsls_more.starts",
            ),
        )
    ),
    Mutant(
        "samples do not weigh",
        "training/validate.py",
        '"samples": [float(n) for n in sizes]',
        '"samples": [1.0 for n in sizes]',
        f"{TWINS}fedavg",
        "servers.weighted; gradient_descent",
    ),
    Mutant(
        "straight steps are twice as long",
        "oracle/linear.py",
        "weight.baddbmm_(D.transpose(1, 2), X, alpha=-1)",
        "weight.baddbmm_(D.transpose(1, 2), X, alpha=-2)",
        f"tests/oracle/test_linear.py {TWINS}fedavg",
    ),
    Mutant(
        "steps of coefficients are twice as long",
        "oracle/linear.py",
        "layers[0][0].sub_(D.transpose(1, 2))",
        "layers[0][0].sub_(D.transpose(1, 2), alpha=2)",
        "tests/oracle/test_linear.py",
    ),
    Mutant(
        "weights stored by columns are not put back",
        "oracle/forms.py",
        "if moved.data_ptr() != mine.data_ptr():",
        "if moved.data_ptr() == mine.data_ptr():",
        "tests/oracle/test_linear.py tests/oracle/test_mlp.py",
    ),
    *(
        Mutant(name, "oracle/mlp.py", old, new, "tests/oracle/test_mlp.py")
        for name, old, new in (
            (
                "all layers have the first one's activation",
                "self.form.hidden[i].activation.apply(Z)",
                "self.form.hidden[0].activation.apply(Z)",
            ),
            (
                "all layers have the slope of the first one's activation",
                "self.form.hidden[i - 1].activation.back(below, H)",
                "self.form.hidden[0].activation.back(below, H)",
            ),
        )
    ),
]
