#!/usr/bin/env python3
"""Loads an exported retriever in sentence-transformers and compares its embeddings with tooltune's.

The embeddings are JSON Lines of {"role": "query" or "document", "text": text, "embedding": [numbers]}. Both sides compute in f32.
sentence-transformers encodes with `encode_query` and `encode_document`; version 3 lacks them, so it gets the prompt of the role.
If the base encoder is available, its difference from the trained encoder is also printed, because agreement proves nothing if
training changed nothing.
"""

import argparse
import datetime
import importlib.metadata
import json
import platform
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Replaces the directory of this file, whose modules would hide packages.
sys.path[0] = str(ROOT / "scripts")

import torch
from sentence_transformers import SentenceTransformer
from transformers.utils import logging

TOLERANCE = 1e-4
PACKAGES = ("sentence-transformers", "transformers", "tokenizers", "torch")


def read(path: Path) -> tuple:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    if not rows:
        raise SystemExit(f"{path}: has no embeddings; write it with `tooltune verify RUN --embeddings FILE`")
    return [(row["role"], row["text"]) for row in rows], torch.tensor([row["embedding"] for row in rows])


def embed(folder: Path, rows: list) -> torch.Tensor:
    model = SentenceTransformer(str(folder), device="cpu")
    parts = []
    for role in ("query", "document"):
        texts = [text for found, text in rows if found == role]
        if not texts:
            continue
        encode = getattr(model, f"encode_{role}", None)
        if encode is None:
            prompt = (model.prompts or {}).get(role) or None
            parts.append(model.encode(texts, prompt=prompt, convert_to_tensor=True))
        else:
            parts.append(encode(texts, convert_to_tensor=True))
    return torch.cat(parts)


def record(line: str) -> None:
    """Replaces the line of the same version in benchmarks/verification.md, or appends the line."""
    path = ROOT / "benchmarks/verification.md"
    begin, end = "<!-- written by scripts/verify/sentence-transformers -->", "<!-- end of that -->"
    text = path.read_text() if path.exists() else "# Verification\n"
    if begin not in text:
        text += f"\n## Retrievers in sentence-transformers\n\n{begin}\n{end}\n"
    before, rest = text.split(begin)
    kept, after = rest.split(end, 1)
    version = line.split(",")[0]
    lines = [old for old in kept.strip().splitlines() if old and not old.startswith(version)]
    path.write_text(f"{before}{begin}\n" + "\n".join([*lines, line]) + f"\n{end}{after}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("exported", type=Path)
    parser.add_argument("embeddings", type=Path)
    parser.add_argument("--base", type=Path, default=ROOT / "models/all-minilm-l6-v2")
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    rows, ours = read(arguments.embeddings)
    theirs = embed(arguments.exported, rows)
    if theirs.shape != ours.shape:
        raise SystemExit(f"expected embeddings of shape {list(theirs.shape)}, found {list(ours.shape)}: they come from another encoder")
    difference = float((theirs - ours).abs().max())
    change = float((theirs - embed(arguments.base, rows)).abs().max()) if arguments.base.exists() else float("nan")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    line = (
        f"{versions}, Python {platform.python_version()}, {datetime.date.today().isoformat()}: {len(rows)} texts, largest "
        f"difference {difference:.2e} (at most {TOLERANCE:.0e}), largest change by training {change:.2e}."
    )
    print(line)
    passed = difference <= TOLERANCE
    if arguments.record and passed:
        record("- " + line)
    if not passed:
        raise SystemExit(f"{arguments.exported}: embeddings differ by {difference}")


if __name__ == "__main__":
    main()
