#!/usr/bin/env python3
"""Fine-tunes a MiniLM with sentence-transformers on the CPU, tuned for speed: the other side of scripts/bench/retriever.

A plain loop over MultipleNegativesRankingLoss (scale 20) without the Trainer. All known optimisations are enabled:
texts are tokenized before the first step, no dropout, SDPA, fused AdamW, autocast for bf16; with --compile,
torch.compile compiles the layers for dynamic lengths before the first timed step.

Writes one JSON line per step: step, seconds, cpu_seconds, tokens (padding not counted), loss. With --evaluate, ranks
documents for queries instead, and prints recall as a JSON line.
"""

import argparse
import json
import random
import resource
import time
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from transformers.utils import logging

RECALL_AT = [5, 10]


def read_rows(path: Path) -> list:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def load_model(arguments) -> SentenceTransformer:
    model = SentenceTransformer(
        str(arguments.model),
        device="cpu",
        model_kwargs={"attn_implementation": "sdpa"},
        config_kwargs={"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    )
    model.max_seq_length = arguments.max_length
    return model


def tokenized_batches(model, pairs: list, size: int) -> list:
    """[(features of the queries, features of the documents)]; an incomplete last batch is dropped."""
    columns = ("query", "document")
    return [
        tuple(model.preprocess([row[column] for row in pairs[start : start + size]]) for column in columns)
        for start in range(0, len(pairs) - size + 1, size)
    ]


def n_tokens(batch: tuple) -> int:
    return sum(int(features["attention_mask"].sum()) for features in batch)


def loss_of(loss_function, batch: tuple, in_bf16: bool) -> torch.Tensor:
    # The package's forward writes its results into the features.
    with torch.autocast("cpu", torch.bfloat16, enabled=in_bf16):
        return loss_function([dict(features) for features in batch], None)


def compile_and_warm_up(model, loss_function, batches: list, in_bf16: bool) -> float:
    """Compiles, and runs the narrowest and the widest batch, so that widths in between do not recompile; returns the seconds.

    Compiles for dynamic lengths even if all are equal: compiled for a fixed length, f32 uses only one thread and is
    slower than without compilation.
    """
    start = time.perf_counter()
    widths = lambda batch: sorted(features["input_ids"].shape[1] for features in batch)
    for layer in model[0].model.encoder.layer:
        layer.compile(dynamic=True)
    for batch in (min(batches, key=widths), max(batches, key=widths)):
        loss_of(loss_function, batch, in_bf16).backward()
    model.zero_grad(set_to_none=True)
    return time.perf_counter() - start


def rate_factor(step: int, warmup: int, total: int) -> float:
    """Linear warm-up and decay; constant without warm-up. `step` starts at 0."""
    if warmup == 0:
        return 1.0
    return min((step + 1) / warmup, (total - step) / max(1, total - warmup))


def train(arguments, model, batches: list) -> None:
    loss_function = MultipleNegativesRankingLoss(model, scale=20.0)
    in_bf16 = arguments.dtype == "bf16"
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=arguments.learning_rate, weight_decay=0.0, fused=True)
    model.train()
    compile_seconds = compile_and_warm_up(model, loss_function, batches, in_bf16) if arguments.compile else 0.0
    with arguments.timing.open("w") as timing:
        for step, batch in enumerate(batches):
            wall, cpu = time.perf_counter(), time.process_time()
            for group in optimizer.param_groups:
                group["lr"] = arguments.learning_rate * rate_factor(step, arguments.warmup, len(batches))
            loss = loss_of(loss_function, batch, in_bf16)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            record = {
                "step": step + 1,
                "seconds": time.perf_counter() - wall,
                "cpu_seconds": time.process_time() - cpu,
                "tokens": n_tokens(batch),
                "loss": float(loss.detach()),
                "compile_seconds": compile_seconds,
                "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            }
            timing.write(json.dumps(record) + "\n")
            timing.flush()


def evaluate(model, documents: list, queries: list) -> dict:
    """Mean over queries of the share of gold documents in the top k of all documents; for GT, k is the number of gold documents."""
    names = [row["name"] for row in documents]
    encode = lambda texts: model.encode(texts, convert_to_tensor=True, normalize_embeddings=True, batch_size=32)
    scores = encode([row["query"] for row in queries]) @ encode([row["text"] for row in documents]).T
    order = scores.argsort(dim=1, descending=True, stable=True)

    def recall(k: int) -> float:
        """`k` 0 means the number of gold documents."""
        shares = []
        for row, best in zip(queries, order.tolist()):
            gold = set(row["gold"])
            found = {names[index] for index in best[: k or len(gold)]}
            shares.append(len(gold & found) / len(gold))
        return sum(shares) / len(shares)

    return {"GT": recall(0)} | {str(k): recall(k) for k in RECALL_AT}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="sentence-transformers folder")
    parser.add_argument("--pairs", type=Path, help='JSON Lines of {"query", "document"}')
    parser.add_argument("--timing", type=Path, help="file to write")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--compile", action="store_true", help="compile the layers with torch.compile")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=2e-5)
    parser.add_argument("--warmup", type=int, default=0, help="warm-up steps, followed by linear decay; 0: constant rate")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--shuffle", type=int, metavar="SEED", help="shuffle the pairs; by default they keep their order")
    parser.add_argument("--save", type=Path, help="folder for the trained model")
    parser.add_argument("--evaluate", type=Path, metavar="DIR", help="folder with documents.jsonl and queries.jsonl")
    arguments = parser.parse_args()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    model = load_model(arguments)
    if arguments.evaluate:
        documents, queries = (read_rows(arguments.evaluate / f"{name}.jsonl") for name in ("documents", "queries"))
        print(json.dumps(evaluate(model, documents, queries)))
        return
    pairs = read_rows(arguments.pairs)
    if arguments.shuffle is not None:
        random.Random(arguments.shuffle).shuffle(pairs)
    train(arguments, model, tokenized_batches(model, pairs, arguments.batch_size))
    if arguments.save:
        model.save(str(arguments.save), create_model_card=False)


if __name__ == "__main__":
    main()
