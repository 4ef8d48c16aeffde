"""The exchanges: clients upload gradients at x, or train and upload updates. Engines decide where this runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedstride.client import local
from fedstride.client.chunk import Chunk
from fedstride.client.context import Context
from fedstride.client.local import LocalOptions, Trained
from fedstride.client.objective import Plain, Terms
from fedstride.client.personal import MEMORY as PERSONAL
from fedstride.client.personal import Personal
from fedstride.core.capabilities import declared
from fedstride.core.normalise import Normalise, moments
from fedstride.core.rows import Col, Rows, State, Vec, generator, repeat, sq
from fedstride.oracle.linear import Reduced
from fedstride.wire import Aggregator, WeightedMean, send

if TYPE_CHECKING:
    from fedstride.algorithm import Algorithm

MOMENTS = "moments"  # name of the exchange before the first round that measures the inputs
WITHIN_ROUND = ("anchor", "anchor_loss")  # memory that is dropped at the end of a round


Message = bytes


@dataclass(frozen=True)
class Upload:
    """The answer of a chunk of clients. Every tensor has one row per client."""

    fields: State  # tensors to be averaged over the cohort
    metrics: State  # numbers for the history, as Cols
    memory: State  # new memory of the clients, which is not sent
    bytes: list[int]  # message size of each client
    lost: dict[int, str] = field(default_factory=dict)  # rows that do not arrive, with the reason
    replies: dict[int, list[Message]] = field(default_factory=dict)  # messages instead of a row (engine/admission.py)


Work = Callable[[Chunk, Vec, State], Upload]


@dataclass(frozen=True)
class Exchange:
    """One kind of exchange: the work of the clients, and the aggregation of their uploads."""

    work: Work
    total: Callable[[], Aggregator] = WeightedMean
    remembers: bool = True  # whether it reads and changes the memory of the clients
    known: Callable[[Context], State] | None = None  # fields that follow from the order, so that the server knows them
    plain: bool = False  # whether the field "loss" is the loss of the data, without terms that may be negative


class UniformMean(WeightedMean):
    """The unweighted mean over clients; their weights are ignored."""

    def add_rows(self, first: int, weights: Sequence[float], fields: Mapping[str, Tensor]) -> None:
        super().add_rows(first, [1.0] * len(weights), fields)


def exchanges(algorithm: Algorithm, options: LocalOptions, normalise: Normalise = False) -> dict[str, Exchange]:
    """Return the exchanges of an algorithm by name; a round performs each of them once, in this order.

    With `normalise`, the last one is performed only once, before the first round: it measures the inputs.
    """
    first = {"gradients": Exchange(send_gradients(algorithm, options))} if algorithm.exchanges_gradients else {}
    total = WeightedMean if algorithm.aggregate is None else algorithm.aggregate.start
    moments = Exchange(send_moments, UniformMean, remembers=False, known=lambda context: {"samples": context.size})
    last = {MOMENTS: moments} if normalise else {}
    known = _known_steps(algorithm) if "effective_steps" in algorithm.needs else None
    plain = algorithm.drift is None and isinstance(algorithm.objective, Plain)
    updates = Exchange(send_updates(algorithm, options), total, known=known, plain=plain)
    return {**first, "updates": updates, **last}


def _known_steps(a: Algorithm) -> Callable[[Context], State]:
    return lambda context: {"effective_steps": a.step.effective_steps(context, a.prox)}  # type: ignore[attr-defined]


def layout(
    a: Algorithm,
    kind: str,
    shapes: Sequence[torch.Size],
    statistics: int = 0,
    features: int = 0,
    personal: Personal | None = None,
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the layout of a client's upload: fields with their lengths, and the names of the metrics.

    Args:
        a: the algorithm.
        kind: name of the exchange.
        shapes: shapes of the model's trainable tensors.
        statistics: number of buffer entries that are averaged in addition to the update.
        features: number of features of an input.
        personal: entries that are not uploaded.
    """
    if kind == MOMENTS:
        return {MOMENTS: 1 + 3 * features}, ("finite", "gradients", "forwards")
    d = sum(shape.numel() for shape in shapes)
    compressed = a.up is not None and (kind == "gradients") == a.exchanges_gradients
    every = ("finite", "gradients", "forwards", *(("message", "error") if compressed else ()))
    if kind == "gradients":
        return {"gradient": d}, every
    shared = d if personal is None else len(personal.shared)
    fields = {"update": shared, "square": 1, **dict.fromkeys(a.drift.uploads if a.drift is not None else (), shared)}
    if "effective_steps" in a.needs:
        fields |= {"effective_steps": 1, "raw": shared}
    if "below" in a.needs:
        fields["below"] = 1
    left = set(a.needs) - fields.keys()
    if left:
        one = torch.ones(1, 1, device="cpu")
        context = Context(0, 0, 1, (0,), (1,), one, one, shapes=tuple(shapes))
        state = a.step.init(torch.zeros(d, device="cpu"), context)
        fields |= {name: state[name].shape[1] for name in sorted(left)}
    if statistics:
        fields["stats"] = statistics
    return fields, ("train_loss", "client_step", "trials", "failed", *every)


def send_moments(chunk: Chunk, x: Vec, memory: State) -> Upload:
    """Upload the moments of the inputs in float64: the exchange before the first round for normalise=True."""
    M = torch.stack([moments(samples.take()[0]).to(x.device) for samples in chunk.samples])
    metrics = {"finite": torch.isfinite(M).all(1, keepdim=True), **_costs(chunk)}
    return Upload({MOMENTS: M}, metrics, {}, [M.shape[1] * M.element_size()] * len(M))


def send_gradients(algorithm: Algorithm, options: LocalOptions) -> Work:
    """Return the work that uploads grad f_i(x), which FedLin and FedTrack exchange before the local steps."""

    def work(chunk: Chunk, x: Vec, memory: State) -> Upload:
        L, G = algorithm.gradient.anchor(chunk, x)
        if options.weight_decay:
            G.add_(x, alpha=options.weight_decay)
        sent, past, size = send(G, algorithm.up, algorithm.feeds_back_up, memory, _sources(chunk, "gradient"))
        metrics = {"finite": torch.isfinite(G).all(1, keepdim=True), **_costs(chunk)}
        if algorithm.up is not None:
            metrics |= _errors(G, sent, past)
        return Upload({"gradient": sent}, metrics, {**memory, **past, "anchor": G, "anchor_loss": L}, size)

    return work


def send_updates(algorithm: Algorithm, options: LocalOptions) -> Work:
    """Return the work that trains and uploads Delta_i = x - y_K, with the fields that drift and server need."""
    a = algorithm

    def work(chunk: Chunk, x: Vec, memory: State) -> Upload:
        context, personal = chunk.context, chunk.personal
        out, update, later = _trained(a, chunk, x, memory, options)
        fields: State = {}
        if a.drift is not None:
            uploads, kept = a.drift.finish(update, out.total, context.broadcast, memory)
            fields.update(uploads)
            later.update(kept)
        if personal is not None:
            update, fields = personal.cut(update), {name: personal.cut(v) for name, v in fields.items()}
        compressor, fed_back = (None, False) if a.exchanges_gradients else (a.up, a.feeds_back_up)
        sources = [] if compressor is None else _sources(chunk, "update")
        sent, past, size = send(update, compressor, fed_back, memory, sources)
        later.update(past)
        if a.privacy is not None:
            sent, private = a.privacy.shorten(sent, context.broadcast["clip"])
            fields.update(private)
        fields["update"], fields["square"] = sent, sq(sent)
        if "effective_steps" in a.needs:
            steps = fields["effective_steps"] = a.step.effective_steps(context, a.prox)  # type: ignore[attr-defined]
            fields["update"], fields["raw"] = sent / steps, sent  # raw: for the drift in the history
        fields.update({name: out.state[name] for name in a.needs if name not in fields})
        extra = sum(fields[name].shape[1] for name in {*a.needs, *(a.drift.uploads if a.drift else ())})
        if chunk.stats is not None and chunk.buffers == "average":
            fields["stats"] = chunk.stats
            extra += chunk.stats.shape[1]

        tau = context.tau
        zero = torch.zeros_like(tau)
        whole = compressor is None and personal is None  # the square is that of the whole change of the model
        metrics = {
            "train_loss": out.first_loss,
            "client_step": out.total / tau,
            "trials": out.state.get("trials", zero) / tau,
            "failed": out.state.get("failed", zero),
            "finite": _finite(out.W, fields["square"] if whole else None),
            **_costs(chunk),
            **({} if compressor is None else _errors(update, sent, past)),
        }
        return Upload(fields, metrics, later, [n + extra * x.element_size() for n in size])

    return work


def _trained(a: Algorithm, chunk: Chunk, x: Vec, memory: State, options: LocalOptions) -> tuple[Trained, Rows, State]:
    """Return the result of local training, the update with zeros for personal entries, and the clients' new memory."""
    context, personal = chunk.context, chunk.personal
    start = x if personal is None else personal.put(x, memory[PERSONAL])
    terms = a.objective.terms(start, memory)
    chunk.contrast = terms.contrast
    corr = a.drift.correction(context.broadcast, memory) if a.drift is not None else None
    if personal is not None:
        out = _run_personal(a, chunk, x, replace(terms, start=start), corr, options, personal)
    elif (span := _span(a, chunk, x, terms, corr, options)) is not None:
        out = local.run(a.step, span.oracles, span.origin, context, Terms(), None, options)
        out = replace(out, W=x + span.lift(out.W))
    else:
        oracles = a.gradient.begin(chunk, x, _base(x, memory, options))
        out = local.run(a.step, oracles, x, context, terms, corr, options)
    later = {k: v for k, v in memory.items() if k not in WITHIN_ROUND}
    later.update(a.objective.finish(start, out.W, memory))
    if personal is not None:
        later[PERSONAL] = out.W[:, personal.own]
        return out, (start - out.W) * personal.mask(x, own=False), later
    if declared(a.objective, "trains_own"):
        later["own"] = _own_model(a, chunk, x, memory, options)
    return out, x - out.W, later


def _run_personal(
    a: Algorithm, chunk: Chunk, x: Vec, terms: Terms, corr: Rows | None, options: LocalOptions, personal: Personal
) -> Trained:
    """Take the local steps: all parameters together (FedPer), or the personal ones before the shared ones (FedRep)."""
    context, oracles, first = chunk.context, a.gradient.begin(chunk, x, None), personal.first
    if not first:
        return local.run(a.step, oracles, x, context, terms, corr, options)
    head = replace(context, steps=(first,) * len(context.steps))
    mine = replace(terms, moves=personal.mask(x, own=True))
    before = local.run(a.step, oracles, x, head, mine, None, options)
    theirs = replace(terms, start=before.W, moves=personal.mask(x, own=False))
    out = local.run(a.step, lambda k, n: oracles(first + k, n), x, context, theirs, corr, options)
    return replace(out, first_loss=before.first_loss)


def _own_model(a: Algorithm, chunk: Chunk, x: Vec, memory: State, options: LocalOptions) -> Rows:
    """Train the clients' own models of an objective such as Ditto's; one that becomes non-finite stays as it was.

    The moving buffers are those of the shared model: steps of the own models do not change them.
    """
    terms, stats = a.objective.own_terms(x, memory), chunk.stats  # type: ignore[attr-defined]
    chunk.contrast, chunk.stats = terms.contrast, None if stats is None else stats.clone()
    V = local.run(a.step, a.gradient.begin(chunk, x, None), x, chunk.context, terms, None, options).W
    chunk.stats = stats
    return torch.where(torch.isfinite(V).all(1, keepdim=True), V, memory["own"])


def _span(a: Algorithm, chunk: Chunk, x: Vec, terms: Terms, corr: Rows | None, options: LocalOptions) -> Reduced | None:
    """Return the problem in the span of the samples if local steps stay there and do not depend on the choice of axes."""
    plain = terms.plain and corr is None and not options.weight_decay
    if not (plain and declared(a.gradient, "plain_batches") and declared(a.step, "rotation_invariant")):
        return None
    return chunk.reduced(x, local.is_straight(a.step, terms, corr, options))


def _base(x: Vec, memory: State, options: LocalOptions) -> tuple[Rows, Rows] | None:
    """Return the loss and the full gradient at x without weight decay, or None without an exchange of gradients."""
    if "anchor" not in memory:
        return None
    return memory["anchor_loss"], memory["anchor"] - options.weight_decay * repeat(x, len(memory["anchor"]))


def _finite(W: Rows, square: Col | None) -> Col:
    """Return whether each client's model is finite; a finite norm of the update proves it without another pass."""
    if square is not None and math.isfinite(square.sum()):
        return torch.ones_like(square, dtype=torch.bool)
    return torch.isfinite(W).all(1, keepdim=True)


def _costs(chunk: Chunk) -> State:
    """Return the numbers of samples evaluated by each client in this exchange, as exact integers."""
    meter = chunk.meter
    return {"gradients": torch.tensor(meter.gradients)[:, None], "forwards": torch.tensor(meter.forwards)[:, None]}


def _errors(V: Rows, sent: Rows, past: State) -> State:
    """Return the squared norms of the messages before compression, and of the compression errors."""
    error = past.get("residual", V - sent)
    return {"message": sq(sent + error), "error": sq(error)}


def _sources(chunk: Chunk, exchange: str) -> list[torch.Generator]:
    context = chunk.context
    return [generator(context.seed, context.round, client, exchange) for client in context.clients]
