"""A Hugging Face classifier: dict batches, padding in `collate`, the model's own loss. Needs `pip install 'fedstride[hf]'`.

Nothing is downloaded: the model is a tiny BERT with random weights, the texts are reviews made of a few words. With a pretrained
model, use AutoModelForSequenceClassification.from_pretrained(...) and its tokenizer; the rest stays the same.
"""

import random

import torch
from transformers import BertConfig, BertForSequenceClassification

import fedstride as fs

GOOD, BAD = ["great", "lovely", "warm", "clever", "moving"], ["dull", "cold", "boring", "weak", "sloppy"]
FILLER = ["the", "a", "film", "plot", "cast", "was", "and", "with", "its", "music", "ending"]
WORDS = {word: i + 1 for i, word in enumerate(GOOD + BAD + FILLER)}  # 0 is padding


def reviews(seed: int, count: int) -> list[dict[str, list[int] | int]]:
    """Reviews of 4 to 12 words; the label says whether most opinions in it are good."""
    source, items = random.Random(seed), []
    for _ in range(count):
        label = source.randrange(2)
        opinions = source.choices((BAD, GOOD)[label], k=2) + source.choices((GOOD, BAD)[label], k=1)
        words = opinions + source.choices(FILLER, k=source.randint(1, 9))
        source.shuffle(words)
        items.append({"input_ids": [WORDS[word] for word in words], "label": label})
    return items


def collate(items):
    """Pad a batch, as transformers.DataCollatorWithPadding does with a tokenizer."""
    length = max(len(item["input_ids"]) for item in items)
    ids = torch.tensor([item["input_ids"] + [0] * (length - len(item["input_ids"])) for item in items])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.tensor([i["label"] for i in items])}


torch.manual_seed(0)
size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
model = BertForSequenceClassification(BertConfig(vocab_size=len(WORDS) + 1, num_labels=2, **size))
clients = {f"cinema {i}": reviews(seed=i, count=60) for i in range(6)}

run = fs.train(
    model,
    "model",  # the loss that the model returns
    clients,
    rounds=20,
    batch_size=12,
    collate=collate,
    test=reviews(seed=99, count=200),
    metrics=["f1"],
    evaluate_every=5,
)
print(f"accuracy {run.history[-1]['test_accuracy']:.3f}, F1 {run.history[-1]['f1']:.3f}")
