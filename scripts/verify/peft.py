#!/usr/bin/env python3
"""Loads an exported adapter in peft, on the base model in transformers, and compares its logits with tooltune's.

Both sides compute in f32, and every logit is compared. The script also prints how much the adapter changes the logits, because
agreement proves nothing if the adapter changes nothing. With `--texts`, peft also completes prompts, which are tokenized by
transformers, and each completion must equal tooltune's. `--record` writes the result into a Markdown file.
"""

import argparse
import datetime
import hashlib
import importlib.metadata
import json
import platform
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Replaces the directory of this file, which would hide the package `peft`.
sys.path[0] = str(ROOT / "scripts")

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

import hf_from_gguf
from hf_logits import logits_of, prompts_of
from verification_section import record

TOLERANCE = 1e-4
# The limit as a share of the largest logit, if that is more than TOLERANCE: forty units in the last place. This is the f32
# rounding of thirty blocks with sums of hundreds of products: with logits up to 46, our error was 1.2e-4 and peft's f32 error
# 0.7e-4. A missing module or a wrong scaling gives a thousand times this difference.
TOLERANCE_OF_LARGEST = 5e-6
# The limit as a multiple of peft's own f32 rounding error on the same logits: if an adapter changes the logits much, its
# rounding adds to the rounding of the blocks. The largest ratio so far is 1.02 (2.50e-4 and 2.45e-4, with a change of 33).
ROUNDINGS = 2
PACKAGES = ("torch", "transformers", "peft", "safetensors", "gguf")


def load_base(path: Path):
    if path.suffix == ".gguf":
        return hf_from_gguf.load_model(path, attention="eager")
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()


def load_tokenizer(path: Path):
    if path.suffix == ".gguf":
        return hf_from_gguf.load_tokenizer(path)
    return AutoTokenizer.from_pretrained(path)


def read_texts(path: Path) -> list:
    """Lines of `tooltune generate --output`."""
    texts = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if not texts:
        raise SystemExit(f"{path}: no completions; write them with `tooltune generate RUN --set model.compute_dtype=f32 --output FILE`")
    return texts


def verdict_on(ours: dict, model, tokenizer) -> str:
    """Compares the model's greedy completion of the prompt with ours: "same", "tie" or "other"."""
    ids = tokenizer(ours["prompt"], add_special_tokens=False, return_tensors="pt").input_ids
    if ids.shape[1] != ours["n_prompt_tokens"]:
        raise SystemExit(f"{ours['id']}: transformers reads the prompt as {ids.shape[1]} tokens, tooltune as {ours['n_prompt_tokens']}")
    ends = ours["finish_reason"] == "stop"
    written = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=ours["n_tokens"] + ends,
        return_dict_in_generate=True,
        output_logits=True,
    )
    new = written.sequences[0, ids.shape[1] :]
    text = tokenizer.decode(new, skip_special_tokens=True)
    is_stop = int(new[-1]) in ids_of(model.generation_config.eos_token_id)
    if text == ours["text"] and is_stop >= ends:
        return "same"
    # The first token that differs from our completion.
    n_same = 0
    while n_same + 1 < len(new) and ours["text"].startswith(tokenizer.decode(new[: n_same + 1], skip_special_tokens=True)):
        n_same += 1
    best, second = written.logits[n_same][0].topk(2).values
    return "tie" if best - second < 2 * TOLERANCE else "other"


def ids_of(eos) -> list:
    return eos if isinstance(eos, list) else [eos]


def compare(base_path: Path, adapter: Path, prompts: list, texts: list) -> tuple:
    """Returns a row of numbers per prompt, and for each completion the verdicts on peft and on the base model."""
    base = load_base(base_path)
    tokenizer = load_tokenizer(base_path) if texts else None
    without = [verdict_on(ours, base, tokenizer) for ours in texts]
    alone = [logits_of(base, ids) for ids, _ in prompts]
    adapted = PeftModel.from_pretrained(base, adapter).eval()
    rows = []
    for k, (ids, ours) in enumerate(prompts):
        theirs = logits_of(adapted, ids)
        if theirs.shape != ours.shape:
            raise SystemExit(f"prompt{k}: peft gives logits {list(theirs.shape)}, the file has {list(ours.shape)}")
        if not torch.isfinite(theirs).all():
            raise SystemExit(f"prompt{k}: peft computes non-finite logits; check the adapter's tensors")
        rows.append(
            {
                "prompt": k,
                "tokens": len(ids),
                "in_f32_difference": float((theirs - ours).abs().max()),
                "change": float((theirs - alone[k]).abs().max()),
                "largest": float(theirs.abs().max()),
                "same_best": float((theirs.argmax(-1) == ours.argmax(-1)).float().mean()),
                "in_f32": theirs,
            }
        )
    verdicts = [verdict_on(ours, adapted, tokenizer) for ours in texts]
    # The exact logits are those that peft computes in f64. Both f32 results are rounded, so the difference between them may be
    # twice the difference of each from the exact logits.
    adapted.double()
    for row, (ids, ours) in zip(rows, prompts):
        exact = logits_of(adapted, ids)
        row["difference"] = float((exact - ours).abs().max())
        row["rounding"] = float((exact - row.pop("in_f32")).abs().max())
    return rows, list(zip(verdicts, without))


def report(arguments, rows: list, verdicts: list, limits: tuple, passed: bool) -> str:
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in PACKAGES)
    weights = arguments.adapter / "adapter_model.safetensors"
    lines = [
        f"Adapter `{arguments.adapter}` (adapter_model.safetensors sha256 `{sha256(weights)[:16]}`) "
        f"on `{arguments.base}`, {datetime.date.today().isoformat()}.",
        f"Python {platform.python_version()}, {versions}.",
        "",
        "| prompt | tokens | tooltune f32 against peft f64 | peft f32 against peft f64 | tooltune f32 against peft f32 "
        "| same best token | change by the adapter | largest logit |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['prompt']} | {r['tokens']} | {r['difference']:.2e} | {r['rounding']:.2e} | {r['in_f32_difference']:.2e} "
        f"| {r['same_best']:.2%} | {r['change']:.3f} | {r['largest']:.2f} |"
        for r in rows
    ]
    verdict = "agrees with" if passed else "DIFFERS from"
    difference, most = limits
    lines += ["", f"peft {verdict} tooltune: the largest difference of a logit from peft in f64 is {difference:.2e}, the limit {most:.1e}."]
    if verdicts:
        same, ties, changed = (sum(found) for found in zip(*((a == "same", a == "tie", b == "other") for a, b in verdicts)))
        tied = f", {ties} differ from a tie on" if ties else ""
        lines.append(f"{same} of {len(verdicts)} texts are the same, letter by letter{tied}; without the adapter, {changed} differ.")
    return "\n".join(lines)


def worst(rows: list) -> tuple:
    """Returns the largest difference, and its limit. If any difference is NaN, the result is NaN; Python's max would ignore it."""
    keys = ("difference", "largest", "rounding")
    difference, largest, rounding = (float(torch.tensor([row[key] for row in rows], dtype=torch.float64).max()) for key in keys)
    return difference, max(TOLERANCE, TOLERANCE_OF_LARGEST * largest, ROUNDINGS * rounding)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("adapter", type=Path, help="directory with adapter_config.json and adapter_model.safetensors")
    parser.add_argument("logits", type=Path, help="file from `tooltune verify ADAPTER --logits FILE`")
    parser.add_argument("--texts", type=Path, help="file from `tooltune generate RUN --set model.compute_dtype=f32 --output FILE`")
    parser.add_argument("--base", type=Path, default=None, help="a GGUF file or a Hugging Face directory; default SmolLM2")
    parser.add_argument("--record", type=Path, help="Markdown file in which the section is replaced")
    arguments = parser.parse_args()
    arguments.base = arguments.base or Path("models/smollm2-135m-instruct.gguf")
    for path in (arguments.adapter / "adapter_config.json", arguments.adapter / "adapter_model.safetensors"):
        if not path.is_file():
            raise SystemExit(f"{path}: no such file; write it with `tooltune export RUN --to peft --output DIR`")
    if not arguments.base.exists():
        raise SystemExit(f"{arguments.base}: no such base model; scripts/fetch-models fetches SmolLM2")
    logging.disable_progress_bar()
    prompts = prompts_of(arguments.logits)
    texts = read_texts(arguments.texts) if arguments.texts else []
    rows, verdicts = compare(arguments.base, arguments.adapter, prompts, texts)
    limits = difference, most = worst(rows)
    passed = difference <= most and all(with_adapter != "other" for with_adapter, _ in verdicts)
    text = report(arguments, rows, verdicts, limits, passed)
    print(text)
    if arguments.record and passed:
        record(arguments.record, "scripts/verify/peft", "The exported adapter in peft", text)
    if not any(row["change"] > 100 * TOLERANCE for row in rows) or verdicts and not any(alone == "other" for _, alone in verdicts):
        print("The adapter hardly changes the completions, so this run proves little.", file=sys.stderr)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
