"""The models: sizes known from the papers, features before the head, and a round of MOON each."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fedstride as fs
from fedstride import models

IMAGE = (1, 28, 28)
TINY = {
    "softmax": ((5,), {}),
    "mlp": ((2, 3), {"hidden": (4, 3)}),
    "small_cnn": ((1, 16, 18), {"width": 2, "hidden": 5}),
    "mcmahan_cnn": ((1, 8, 8), {"width": 2, "hidden": 5}),
    "reddi_cnn": ((1, 8, 8), {"width": 2, "hidden": 5}),
    "resnet18": ((3, 8, 8), {"width": 2, "groups": 1}),
    "resnet50": ((3, 8, 8), {"width": 2, "groups": 1}),
    "char_lstm": ((6,), {"embedding": 2, "hidden": 4, "layers": 2}),
    "char_mlp": ((6,), {"context": 4, "embedding": 2, "hidden": 5}),
    "transformer": ((6,), {"width": 4, "heads": 2, "layers": 1}),
}
COUNTS = [
    ("softmax", IMAGE, 10, {}, 7_850),
    ("mlp", IMAGE, 10, {}, 199_210),  # McMahan et al.'s "2NN"
    ("small_cnn", IMAGE, 10, {}, 21_840),
    ("mcmahan_cnn", IMAGE, 10, {}, 1_663_370),
    ("mcmahan_cnn", IMAGE, 10, {"padding": False}, 582_026),
    ("reddi_cnn", IMAGE, 62, {}, 1_206_590),
    ("resnet18", (3, 32, 32), 10, {}, 11_173_962),
    ("resnet18", (3, 32, 32), 10, {"width": 16, "groups": 16}, 701_466),  # the narrow stand-in
    ("resnet50", (3, 32, 32), 10, {}, 23_520_842),
    # embedding, positions, two layers of 12 w^2 + 13 w, the last norm, head
    ("transformer", (80,), 4, {"vocabulary": 100}, 64 * 180 + 2 * (12 * 64**2 + 13 * 64) + 2 * 64 + 65 * 4),
    # embedding + two layers with two biases each + head
    ("char_lstm", (80,), 80, {}, 80 * 8 + 1024 * (8 + 256 + 2) + 1024 * (512 + 2) + 257 * 80),
    ("char_mlp", (80,), 80, {}, 80 * 8 + (12 * 8 + 1) * 128 + 129 * 80),
]
TEXT = ("char_lstm", "char_mlp", "transformer")


def tiny(name: str, classes: int = 3) -> nn.Module:
    shape, options = TINY[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return models.build(name, shape, classes, **options)


def samples(name: str, n: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    source = torch.Generator().manual_seed(seed)
    shape = (n, *TINY[name][0])
    if name in TEXT:
        return torch.randint(3, shape, generator=source)
    return torch.rand(shape, generator=source).to(dtype)


def test_every_model_has_a_tiny_twin_here():
    assert set(TINY) == set(models.MODELS)


@pytest.mark.parametrize(("name", "shape", "classes", "options", "count"), COUNTS)
def test_the_number_of_parameters(name, shape, classes, options, count):
    model = models.build(name, shape, classes, **options)
    assert sum(p.numel() for p in model.parameters()) == count
    inputs = torch.zeros(2, *shape, dtype=torch.long if name in TEXT else torch.float32)
    with torch.no_grad():
        assert model.eval()(inputs).shape == (2, classes)


@pytest.mark.parametrize("name", TINY)
def test_forward_is_the_head_on_the_features(name):
    model, inputs = tiny(name).eval(), samples(name, 4)
    z = model.features(inputs)
    assert z.dim() == 2 and z.shape[1] == model.head.in_features
    assert torch.equal(model(inputs), model.head(z))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", TINY)
def test_gradients_reach_every_parameter(name, dtype):
    model = tiny(name).to(dtype).eval()
    output = model(samples(name, 8, dtype=dtype))
    assert output.dtype == dtype
    nn.functional.cross_entropy(output, torch.arange(8) % 3).backward()
    assert all(bool((p.grad != 0).any()) for p in model.parameters())


@pytest.mark.parametrize("name", TINY)
def test_a_copy_computes_the_same_and_is_its_own(name):
    model, inputs = tiny(name).eval(), samples(name, 3)
    twin = copy.deepcopy(model)
    before = model(inputs)
    assert torch.equal(twin(inputs), before)
    with torch.no_grad():
        for p in twin.parameters():
            p.add_(1)
    assert torch.equal(model(inputs), before)
    assert not torch.equal(twin(inputs), before)


@pytest.mark.parametrize("name", TINY)
def test_a_round_of_moon(name):
    model = tiny(name)
    clients = [(samples(name, 6, seed), torch.arange(6) % 3) for seed in (1, 2)]
    run = fs.train(model, "cross_entropy", clients, "moon", rounds=1, batch_size=3, test=clients[0])
    assert bool(torch.isfinite(run.x).all())
    start = nn.utils.parameters_to_vector(model.parameters())
    assert not torch.equal(run.x, start)
    assert torch.equal(run.model(clients[0][0]), run.model.head(run.model.features(clients[0][0])))


def test_dropout_acts_in_training_only_and_can_be_turned_off():
    inputs = torch.rand(4, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    model = models.build("small_cnn", IMAGE, 10)
    assert not torch.equal(model(inputs), model(inputs))
    model.eval()
    assert torch.equal(model(inputs), model(inputs))
    calm = models.build("small_cnn", IMAGE, 10, dropout=0.0).train()
    assert torch.equal(calm(inputs), calm(inputs))
    assert not [m for m in calm.modules() if isinstance(m, nn.Dropout | nn.Dropout2d)]


@pytest.mark.parametrize(("name", "reads"), [("char_lstm", [0, 1, 2, 3, 4, 5]), ("char_mlp", [2, 3, 4, 5])])
def test_which_characters_of_the_window_are_read(name, reads):
    """All of them, or the last `context`."""
    model, one = tiny(name), torch.zeros(1, 6, dtype=torch.long)
    changed = [i for i in range(6) if not torch.equal(model(one), model(one.index_fill(1, torch.tensor(i), 1)))]
    assert changed == reads


def test_the_mlp_of_characters_knows_their_order():
    model = tiny("char_mlp")
    assert not torch.equal(model(torch.tensor([[0, 0, 0, 0, 1, 2]])), model(torch.tensor([[0, 0, 0, 0, 2, 1]])))


@pytest.mark.parametrize(
    ("arguments", "options", "says"),
    [
        (("resnet1", (3, 32, 32), 10), {}, "did you mean 'resnet18'"),
        (("vgg", (3, 32, 32), 10), {}, "expected one of: char_lstm, char_mlp, mcmahan_cnn"),
        (("mlp", (4,), 3), {"hiden": (3,)}, "did you mean 'hidden'"),
        (("char_mlp", (80,), 80), {"contex": 3}, "did you mean 'context'"),
        (("char_mlp", (6,), 80), {}, "context=12 is invalid: expected 1 to 6"),
        (("softmax", (4,), 3), {"width": 3}, "it has no options"),
        (("softmax", (4,), 0), {}, "classes=0"),
        (("softmax", (4,), None), {}, "regression: 1"),
        (("small_cnn", (1, 8, 8), 10), {}, "at least 16 x 16"),
        (("mcmahan_cnn", (64,), 10), {}, "(channels, height, width)"),
        (("small_cnn", IMAGE, 10), {"dropout": 1.0}, "dropout=1.0"),
        (("resnet18", (3, 32, 32), 10), {"groups": 5}, "does not divide"),
        (("transformer", (80,), 10), {"heads": 5}, "does not divide"),
        (("mlp", (4,), 10), {"augment": True}, "(channels, height, width)"),
    ],
)
def test_what_cannot_be_built_says_why(arguments, options, says):
    with pytest.raises(fs.InvalidInput) as caught:
        models.build(*arguments, **options)
    assert says in str(caught.value)


@pytest.mark.parametrize("border", ["constant", "reflect"])
def test_augmented_images_are_shifted_and_flipped_in_training_only(border):
    image = torch.arange(1.0, 65.0).reshape(1, 1, 8, 8)
    layer = models.CropFlip(pad=2, border=border)
    assert torch.equal(layer.eval()(image), image)
    torch.manual_seed(0)
    seen = layer.train()(image.repeat(1000, 1, 1, 1))
    padded = nn.functional.pad(image, (2, 2, 2, 2), mode=border)[0]
    crops = [padded[:, i : i + 8, j : j + 8] for i in range(5) for j in range(5)]
    allowed = [one for crop in crops for one in (crop, crop.flip(-1))]
    found = [next(i for i, one in enumerate(allowed) if torch.equal(one, crop)) for crop in seen]
    assert len(set(found)) == len(allowed)
    assert 0.35 < sum(i % 2 for i in found) / 1000 < 0.65


def test_an_augmented_model_trains_reproducibly_and_is_evaluated_on_whole_images():
    clients = [
        (torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(s)), torch.arange(6) % 3) for s in (1, 2)
    ]
    runs = []
    for workers in (1, 2):
        torch.manual_seed(0)
        model = models.build("mcmahan_cnn", (1, 8, 8), 3, augment=True, width=2, hidden=5)
        runs.append(
            fs.train(
                model,
                "cross_entropy",
                clients,
                "fedavg",
                rounds=2,
                batch_size=3,
                engine=fs.engine.Local(workers=workers),
            )
        )
    assert torch.equal(runs[0].x, runs[1].x)
    plain = models.build("mcmahan_cnn", (1, 8, 8), 3, width=2, hidden=5)
    nn.utils.vector_to_parameters(runs[0].x, plain.parameters())
    assert torch.equal(runs[0].model.eval()(clients[0][0]), plain.eval()(clients[0][0]))
