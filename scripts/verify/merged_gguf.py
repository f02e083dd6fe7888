#!/usr/bin/env python3
"""Completes prompts greedily with a merged GGUF model in llama.cpp, and compares the completions with tooltune's.

The file is first converted to a GGUF file in f32, because llama.cpp rounds activations to the precision of quantised weights,
which gives different results; the cache is also in f32. Both sides then compute the same function in f32. Prompts are strings, so
llama.cpp's own tokenizer is tested. Completions may differ only after a tie: a token whose logit exceeds the second-best one by
less than the difference between two f32 implementations. With `--logits`, every logit is compared with the checkpoint's; use it
for a file in f32, because a merge into a smaller format rounds. The original file with llama.cpp's defaults is also measured, but
does not affect the exit code. `--record` writes the result into a Markdown file.
"""

import argparse
import datetime
import hashlib
import json
import sys
import tempfile
from contextlib import closing
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Replaces the directory of this file, whose modules would hide packages.
sys.path[0] = str(ROOT / "scripts")

import numpy

from dequantised_gguf import write_dequantised
from llama_cpp_greedy import bound_of, same_text
from llama_cpp_model import EXACT, LlamaCppModel, versions
from logits_file import read_prompts
from verification_section import record

# The limit as a share of the largest logit, if that is more than the bound of the model: a merged model computes with W + sBA,
# and the checkpoint computes with W and sBA separately. `tooltune verify --against merged` uses the same limit.
MERGE_SHARE = 2e-5


def read_texts(path: Path) -> list:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if not rows:
        raise SystemExit(f"{path}: has no completions; generate some")
    if any(row.get("finish_reason") not in ("stop", "length") for row in rows):
        raise SystemExit(f"{path}: the finish_reason of a completion is neither stop nor length; generate greedily")
    return rows


def written(model: LlamaCppModel, rows: list, bound: float) -> tuple:
    """Counts completions that are the same, differ after a tie, or differ otherwise; also returns the errors as lines."""
    counts, wrong = {"same": 0, "tie": 0, "other": 0}, []
    for row in rows:
        ids = model.ids(row["prompt"].encode())
        if len(ids) != row["n_prompt_tokens"]:
            counts["other"] += 1
            wrong.append(f"{row['id']}: the prompt has {len(ids)} tokens in llama.cpp and {row['n_prompt_tokens']} in tooltune")
            continue
        model.clear()
        logits = model.logits([(token, position, 0, position == len(ids) - 1) for position, token in enumerate(ids)])[-1].copy()
        verdict, text = same_text(model, logits, len(ids), row, bound)
        counts[verdict] += 1
        if verdict == "other":
            wrong.append(f"{row['id']}: llama.cpp generates {text!r}, tooltune {row['text']!r}")
    return counts, wrong


def compared(model: LlamaCppModel, path: Path, prompts: list) -> tuple:
    """Returns a line on the logits, and the errors as lines."""
    differences = [float(numpy.abs(model.all_logits(ids) - ours).max()) for ids, ours in prompts]
    # numpy's max is NaN if any value is NaN; Python's max would ignore it.
    worst = float(numpy.max(differences))
    limit = max(bound_of(path), MERGE_SHARE * max(float(numpy.abs(ours).max()) for _, ours in prompts))
    line = f"{path}: the largest difference of a logit is {worst:.2e}, the limit {limit:.1e}, in {len(prompts)} prompts"
    return line, [] if worst <= limit else [line]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="output of `tooltune export RUN --to gguf --merged`")
    parser.add_argument("texts", type=Path, help="file from `tooltune generate MODEL --output FILE`, generated greedily in f32")
    parser.add_argument("--logits", type=Path, help="file from `tooltune verify RUN --logits FILE`")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--record", type=Path, help="Markdown file in which the section on a file of this name is replaced")
    arguments = parser.parse_args()
    for path in (arguments.model, arguments.texts):
        if not path.is_file():
            raise SystemExit(f"{path}: no such file")
    rows = read_texts(arguments.texts)
    prompts = read_prompts(arguments.logits) if arguments.logits else []
    n_ctx = max([row["n_prompt_tokens"] + row["n_tokens"] for row in rows] + [len(ids) for ids, _ in prompts]) + 8
    settings = {"n_ctx": n_ctx, "threads": arguments.threads}
    lines, wrong = [], []
    with tempfile.TemporaryDirectory() as folder:
        exact = Path(folder) / "f32.gguf"
        write_dequantised(arguments.model, exact, "f32")
        with closing(LlamaCppModel(exact, context=EXACT, **settings)) as model:
            if prompts:
                line, wrong = compared(model, arguments.model, prompts)
                lines.append(line)
            counts, others = written(model, rows, bound_of(arguments.model))
    wrong += others
    lines.append(
        f"{arguments.model}: of {len(rows)} texts {counts['same']} are the same, {counts['tie']} differ after a tie, {counts['other']} are wrong"
    )
    with closing(LlamaCppModel(arguments.model, **settings)) as model:
        served, _ = written(model, rows, bound_of(arguments.model))
    lines.append(f"{arguments.model} as it is, by llama.cpp's own choices: {served['same']} of {len(rows)} texts are the same")
    digest = hashlib.sha256(arguments.model.read_bytes()).hexdigest()[:16]
    lines.append(f"(sha256 {digest}, {datetime.date.today().isoformat()}; {versions()})")
    print("\n".join(lines))
    for line in wrong:
        print(line, file=sys.stderr)
    if arguments.record and not wrong:
        script = f"scripts/verify/merged-gguf {arguments.model.name}"
        title = f"The whole model `{arguments.model.name}` in llama.cpp"
        record(arguments.record, script, title, "\n".join(f"- {line}" for line in lines))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
