"""Recall of MiniLM before and after training on BFCL's query-function pairs, with both sides of scripts/bench/retriever.

The folder has either BFCL's own files (`BFCL_v4_CATEGORY.json` and `possible_answer/`, as in `bfcl_eval/data`) or
`bfcl_pairs.json` with the pairs built from them: {"docs": {name: text}, "train": [[query, name]], "test": [[query,
[name]]]}. There is one document per function name. Test queries are those with a gold function from a random 30 % of
all gold functions, which are never trained on; retrieval uses all documents.

`pairs.jsonl` has the pairs batch by batch, with each document and query at most once per batch, so that a side that
keeps the file's order trains on the same batches as sentence-transformers.
"""

import json
import random
from pathlib import Path

from machine import ROOT, say
from retriever_sides import MODEL, Training

CATEGORIES = (
    "simple_python multiple live_simple live_multiple parallel parallel_multiple live_parallel live_parallel_multiple"
).split()
HELD_OUT, SEED, BATCH_SIZE, MAX_LENGTH, LEARNING_RATE = 0.3, 0, 32, 128, 1e-4


def read_lines(path: Path) -> list:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def function_text(function: dict) -> str:
    parameters = function.get("parameters", {}).get("properties", {})
    described = "; ".join(f"{name}: {value.get('description', '')}" for name, value in parameters.items())
    return f"{function['name']}: {function['description']} Parameters: {described}"


def read_bfcl(folder: Path) -> tuple:
    """({name: text}, [(query, sorted names of the called functions)]); of several texts with one name the longest."""
    documents, items = {}, []
    for category in CATEGORIES:
        answers = read_lines(folder / "possible_answer" / f"BFCL_v4_{category}.json")
        gold = {row["id"]: sorted({name for call in row["ground_truth"] for name in call}) for row in answers}
        for row in read_lines(folder / f"BFCL_v4_{category}.json"):
            for function in row["function"]:
                text = function_text(function)
                if len(text) > len(documents.get(function["name"], "")):
                    documents[function["name"]] = text
            query = " ".join(m["content"] for m in row["question"][0] if m["role"] == "user").strip()
            if query and row["id"] in gold:
                items.append((query, gold[row["id"]]))
    return documents, [(query, names) for query, names in items if all(name in documents for name in names)]


def split_by_function(items: list) -> tuple:
    """([(query, name)], [(query, names)]): pairs without held-out functions, and one test query for each query text with them."""
    names = sorted({name for _, gold in items for name in gold})
    random.Random(SEED).shuffle(names)
    held_out = set(names[: int(len(names) * HELD_OUT)])
    test = {}
    for query, gold in items:
        if held_out.intersection(gold):
            test.setdefault(query, gold)
    pairs = [(q, name) for q, gold in items if q not in test and not held_out.intersection(gold) for name in gold]
    return list(dict.fromkeys(pairs)), list(test.items())


def read_split(folder: Path) -> tuple:
    """(documents, train pairs, test queries)."""
    ready = folder / "bfcl_pairs.json"
    if ready.exists():
        record = json.loads(ready.read_text(encoding="utf-8"))
        return record["docs"], [tuple(pair) for pair in record["train"]], record["test"]
    if not (folder / "possible_answer").is_dir():
        raise SystemExit(f"{folder}: found neither bfcl_pairs.json nor possible_answer/; pass the folder bfcl_eval/data")
    documents, items = read_bfcl(folder)
    return documents, *split_by_function(items)


def batches_without_repeats(pairs: list) -> list:
    """Shuffled batches in which no query and no document occurs twice; pairs that do not fit into a full batch are omitted."""
    left, batches = list(pairs), []
    random.Random(SEED).shuffle(left)
    while True:
        batch, passed, seen = [], [], set()
        for query, name in left:
            keys = {("query", query), ("document", name)}
            if len(batch) < BATCH_SIZE and not seen & keys:
                batch.append((query, name))
                seen |= keys
            else:
                passed.append((query, name))
        if len(batch) < BATCH_SIZE:
            return batches
        batches.append(batch)
        left = passed


def write_lines(path: Path, rows) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def prepared(folder: Path, out: Path) -> int:
    """Writes documents.jsonl, queries.jsonl and pairs.jsonl; returns the number of batches."""
    documents, pairs, test = read_split(folder)
    batches = batches_without_repeats(pairs)
    out.mkdir(parents=True, exist_ok=True)
    write_lines(out / "documents.jsonl", ({"name": name, "text": documents[name]} for name in sorted(documents)))
    write_lines(out / "queries.jsonl", ({"query": query, "gold": gold} for query, gold in test))
    write_lines(out / "pairs.jsonl", ({"query": q, "document": documents[name]} for batch in batches for q, name in batch))
    say(f"{len(documents)} documents, {len(pairs)} pairs, {len(batches)} batches of {BATCH_SIZE}, {len(test)} test queries")
    return len(batches)


def compared(runner, sides: list, folder: Path, runs: Path, threads: int) -> str:
    """Trains with every side and returns a recall table."""
    data = runs / "quality"
    n_batches = prepared(folder, ROOT / data)
    warmup = max(1, n_batches // 10)
    training = Training(data / "pairs.jsonl", BATCH_SIZE, MAX_LENGTH, LEARNING_RATE, warmup, is_saved=True)
    rows = [("before", 0, 0.0, runner.evaluate(MODEL, data, MAX_LENGTH, threads))]
    say(f"before: {rows[0][-1]}")
    for side in sides:
        steps, _, trained = runner.train(side, training, threads, "quality")
        seconds = sum(step["cpu_seconds"] for step in steps)
        rows.append((side.name, len(steps), seconds, runner.evaluate(trained, data, MAX_LENGTH, threads)))
        say(f"{side.name}: {rows[-1][-1]}")
    lines = ["| side | steps | CPU-s | " + " | ".join(f"Recall@{k}" for k in rows[0][-1]) + " |"]
    lines.append("|---|--:|--:|" + "--:|" * len(rows[0][-1]))
    for name, n_steps, seconds, recalls in rows:
        lines.append(f"| {name} | {n_steps} | {seconds:.0f} | {' | '.join(f'{r:.4f}' for r in recalls.values())} |")
    return "\n".join(lines)
