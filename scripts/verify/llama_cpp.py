#!/usr/bin/env python3
"""Loads a GGUF adapter in llama.cpp, on its base model, and compares logits and greedy completions with tooltune's.

The base is first converted to a GGUF file in f32, because llama.cpp multiplies quantised weights by quantised activations, which
gives different results; the cache is also in f32. Both sides then compute the same function in f32 and differ only in the order
of summation. The original base with llama.cpp's defaults is also measured, but does not affect the exit code. Prompts are token
ids, so no chat template is involved; the script also checks that llama.cpp tokenizes their text into the same ids. `--record`
writes the result into a Markdown file.
"""

import argparse
import datetime
import hashlib
import json
import platform
import sys
import tempfile
from contextlib import closing
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Replaces the directory of this file, which would hide the package `llama_cpp`.
sys.path[0] = str(ROOT / "scripts")

import numpy

from dequantised_gguf import write_dequantised
from llama_cpp_greedy import bound_of, same_text
from llama_cpp_model import EXACT, LlamaCppModel, versions
from logits_file import read_prompts
from verification_section import record


def read_texts(path: Path, n: int) -> list:
    """Reads the first `n` lines of a predictions.jsonl: completion, number of tokens and finish reason of each."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[:n]]
    if len(rows) < n:
        raise SystemExit(f"{path}: has {len(rows)} completions, but the logits have {n} prompts; evaluate {n} rows")
    if any(row.get("finish_reason") not in ("stop", "length") for row in rows):
        raise SystemExit(f"{path}: the finish_reason of a completion is neither stop nor length; evaluate greedily, without a server")
    return [{**row, "text": row["prediction"]} for row in rows]


def measured(model: LlamaCppModel, prompts: list, texts: list, bound: float) -> list:
    """Returns for each prompt: logits, their difference from ours, the share of equal best tokens, and the comparison of completions."""
    rows = []
    for k, (ids, ours) in enumerate(prompts):
        theirs = model.all_logits(ids)
        if theirs.shape != ours.shape:
            raise SystemExit(f"prompt{k}: llama.cpp gives logits {list(theirs.shape)}, the file has {list(ours.shape)}")
        if not numpy.isfinite(theirs).all():
            raise SystemExit(f"prompt{k}: llama.cpp computes non-finite logits; check the adapter's tensors")
        verdict, text = same_text(model, theirs[-1], len(ids), texts[k], bound) if texts else ("", "")
        rows.append(
            {
                "logits": theirs,
                "difference": float(numpy.abs(theirs - ours).max()),
                "same_best": float((theirs.argmax(-1) == ours.argmax(-1)).mean()),
                "verdict": verdict,
                "text": text,
                "reads_same": model.ids(model.text(ids, special=True)) == ids.tolist(),
            }
        )
    return rows


def compare(arguments, prompts: list, texts: list) -> dict:
    """Returns the measurements: `exact` in f32, `alone` in f32 without the adapter, `served` with llama.cpp's defaults."""
    n_ctx = max(len(ids) for ids, _ in prompts) + max((row["n_tokens"] for row in texts), default=0) + 8
    settings = {"n_ctx": n_ctx, "threads": arguments.threads}
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "f32.gguf"
        write_dequantised(arguments.base, base, "f32")
        sides = {
            "exact": {"path": base, "adapter": arguments.adapter, "context": EXACT},
            "alone": {"path": base, "context": EXACT},
            "served": {"path": arguments.base, "adapter": arguments.adapter},
        }
        found = {}
        for kind, side in sides.items():
            with closing(LlamaCppModel(**side, **settings)) as model:
                found[kind] = measured(model, prompts, texts, bound_of(arguments.base))
    return found


def faults(found: dict, bound: float) -> list:
    """Returns the errors as lines."""
    lines = []
    for k, (exact, alone) in enumerate(zip(found["exact"], found["alone"])):
        if exact["difference"] > bound:
            lines.append(f"prompt{k}: a logit differs by {exact['difference']:.2e}, the limit is {bound:.0e}")
        if exact["verdict"] == "other":
            lines.append(f"prompt{k}: llama.cpp generates a different completion: {exact['text']!r}")
        if not exact["reads_same"]:
            lines.append(f"prompt{k}: llama.cpp's tokenizer gives different tokens for the prompt")
        if alone["difference"] < 100 * bound:
            lines.append(f"prompt{k}: without the adapter logits differ by only {alone['difference']:.2e}, which proves little; train longer")
    if found["alone"][0]["verdict"] and all(row["verdict"] == "same" for row in found["alone"]):
        lines.append("without the adapter all completions are the same, which proves little; train longer, or give more prompts")
    return lines


def report(arguments, prompts: list, found: dict, wrong: list) -> str:
    digest = hashlib.sha256(arguments.adapter.read_bytes()).hexdigest()[:16]
    lines = [
        f"Adapter `{arguments.adapter}` (sha256 `{digest}`) on `{arguments.base}`, {datetime.date.today().isoformat()}.",
        f"Python {platform.python_version()}, {versions()}.",
        "",
        "| prompt | tokens | difference, both in f32 | same best token | text | change by the adapter | largest logit "
        "| difference, base as it is | same best token | text |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for k, ((ids, ours), exact, alone, served) in enumerate(zip(prompts, *(found[kind] for kind in ("exact", "alone", "served")))):
        change = float(numpy.abs(exact["logits"] - alone["logits"]).max())
        lines.append(
            f"| {k} | {len(ids)} | {exact['difference']:.2e} | {exact['same_best']:.2%} | {exact['verdict'] or '–'} | {change:.3f} "
            f"| {float(numpy.abs(ours).max()):.2f} | {served['difference']:.3f} | {served['same_best']:.2%} | {served['verdict'] or '–'} |"
        )
    n_changed = sum(row["verdict"] not in ("", "same") for row in found["alone"])
    verdict = "DIFFERS from" if wrong else "agrees with"
    # numpy's max is NaN if any value is NaN; Python's max would ignore it.
    worst = float(numpy.max([row["difference"] for row in found["exact"]]))
    lines += [
        "",
        f"llama.cpp {verdict} tooltune: the largest difference of a logit is {worst:.2e}, the limit {bound_of(arguments.base):.0e}.",
        f"Without the adapter, {n_changed} of {len(prompts)} texts differ." if found["alone"][0]["verdict"] else "No texts were compared.",
        "For the base as it is, the weights are quantised, llama.cpp also quantises the activations, and the cache is in f16.",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("adapter", type=Path, help="output of `tooltune export RUN --to gguf`")
    parser.add_argument("logits", type=Path, help="file from `tooltune verify RUN --logits FILE`")
    parser.add_argument("--texts", type=Path, help="predictions.jsonl of the same rows, generated greedily in f32")
    parser.add_argument("--base", type=Path, default=Path("models/smollm2-135m-instruct.gguf"), help="a GGUF file; default SmolLM2")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--record", type=Path, help="Markdown file in which the section is replaced")
    arguments = parser.parse_args()
    for path in (arguments.adapter, arguments.base):
        if not path.is_file():
            raise SystemExit(f"{path}: no such file")
    prompts = read_prompts(arguments.logits)
    texts = read_texts(arguments.texts, len(prompts)) if arguments.texts else []
    found = compare(arguments, prompts, texts)
    wrong = faults(found, bound_of(arguments.base))
    text = report(arguments, prompts, found, wrong)
    print(text)
    for line in wrong:
        print(line, file=sys.stderr)
    if arguments.record and not wrong:
        record(arguments.record, "scripts/verify/llama-cpp", "The exported adapter in llama.cpp", text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
