"""LoRA through peft, on a model of transformers, as it is: small messages, small files, exact aggregation, and `auto`."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch

import fedstride as fs
from fedstride.core.lora import pairs_of
from tests.tiers import slow

MISSING = [name for name in ("peft", "transformers") if find_spec(name) is None]
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason="pip install 'fedstride[hf]'")]

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
QUERY_VALUE = ["query", "value"]


def bert(seed=0, **settings):
    """A classifier of sequences of tokens, with adapters, without dropout."""
    import peft  # takes 5 s, so not where `make test` collects tests
    import transformers

    torch.manual_seed(seed)
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    shape = {"vocab_size": 20, "max_position_embeddings": 16, "num_labels": 2, "initializer_range": 0.3}
    config = transformers.BertConfig(**shape, **SMALL, **still)
    model = transformers.BertForSequenceClassification(config).double()
    torch.manual_seed(1)
    given = {"task_type": "SEQ_CLS", "r": 2, "lora_alpha": 4, "target_modules": QUERY_VALUE, **settings}
    return peft.get_peft_model(model, peft.LoraConfig(**given), autocast_adapter_dtype=False)


def client(seed):
    source = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, 20, (24, 8), generator=source)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": (ids[:, 1] > 10).long()}


CLIENTS = [client(seed) for seed in range(3)]


def trained(algorithm="auto", rounds=1, model=None, data=CLIENTS, **settings):
    return fs.train(bert() if model is None else model, "model", data, algorithm, rounds=rounds, **settings)


def merged(model):
    """The weights of the adapted layers without adapters."""
    plain = model.merge_and_unload()
    return {name: v.detach() for name, v in plain.named_parameters() if name.endswith(("query.weight", "value.weight"))}


def test_only_adapters_and_the_head_travel():
    row = trained("fedavg").history[0]
    count = sum(p.numel() for p in bert().parameters() if p.requires_grad)
    assert row["bytes_up"] == row["bytes_down"] == len(CLIENTS) * 8 * count


@pytest.mark.slow
def test_auto_trains_it_without_a_rate():
    history = trained(rounds=20, batch_size=8).history
    assert history[-1]["train_loss"] < 0.5 * history[0]["train_loss"]


def test_the_saved_model_is_small_and_belongs_to_its_base(tmp_path):
    run = trained()
    file = run.save(tmp_path / "small") / "model.safetensors"
    assert 5 * file.stat().st_size < (run.save(tmp_path / "all", frozen=True) / "model.safetensors").stat().st_size
    again = fs.load(tmp_path / "small", bert())
    assert all(torch.equal(v, again.model.state_dict()[name]) for name, v in run.model.state_dict().items())
    with pytest.raises(fs.InvalidInput, match="frozen parameters"):
        fs.load(tmp_path / "small", bert(seed=5))


@pytest.mark.parametrize("exact", [slow(True), slow(False)])
def test_only_exact_aggregation_gives_the_mean_of_the_merged_models(exact):
    local = {"local_steps": 5, "batch_size": None}
    step = fs.Algorithm(step=fs.Constant(1.0))
    alone = [merged(trained(step, data=[one], **local).model) for one in CLIENTS]
    run = trained(replace(step, aggregate=fs.ExactLoRA()) if exact else step, **local)
    found = merged(run.model)
    error = max(float((found[k] - sum(m[k] for m in alone) / len(alone)).abs().max()) for k in found)
    assert len(found) == 4 and (error < 1e-12 if exact else error > 1e-3)


def test_variants_and_embeddings_are_refused():
    with pytest.raises(fs.Refused, match="a variant of LoRA"):
        pairs_of(bert(use_dora=True))
    with pytest.raises(fs.Refused, match="an embedding"):
        pairs_of(bert(target_modules=["word_embeddings", *QUERY_VALUE]))


def test_rank_stabilised_scaling_and_transposed_weights_are_exact():
    import peft
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=20, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    lora = peft.LoraConfig(r=4, use_rslora=True, target_modules=["c_attn"], fan_in_fan_out=True)
    pair = pairs_of(peft.get_peft_model(transformers.GPT2LMHeadModel(config), lora))[0]
    assert pair.transposed and (pair.rows, pair.columns, pair.rank) == (48, 16, 4) and pair.scaling == 8 / 4**0.5
