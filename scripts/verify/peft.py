#!/usr/bin/env python3
"""Loads an exported adapter in peft, on the base model in transformers, and compares logits with those tooltune wrote.

Both sides compute in f32. The comparison is of every logit; the change that the adapter makes is printed beside the difference,
since agreement means nothing for an adapter that does nothing. `--record` writes the result into a Markdown file.
"""

import argparse
import datetime
import hashlib
import importlib.metadata
import platform
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# In place of the directory of this file, whose name would hide the package of that name.
sys.path[0] = str(ROOT / "scripts")

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM
from transformers.utils import logging

import hf_from_gguf
from hf_logits import logits_of, prompts_of
from verification_section import record

TOLERANCE = 1e-4
PACKAGES = ("torch", "transformers", "peft", "safetensors", "gguf")


def load_base(path: Path):
    if path.suffix == ".gguf":
        return hf_from_gguf.load_model(path, attention="eager")
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()


def compare(base_path: Path, adapter: Path, prompts: list) -> list:
    base = load_base(base_path)
    alone = [logits_of(base, ids) for ids, _ in prompts]
    adapted = PeftModel.from_pretrained(base, adapter).eval()
    rows = []
    for k, (ids, ours) in enumerate(prompts):
        theirs = logits_of(adapted, ids)
        if theirs.shape != ours.shape:
            raise SystemExit(f"prompt{k}: peft gives logits {list(theirs.shape)}, the file has {list(ours.shape)}")
        if not torch.isfinite(theirs).all():
            raise SystemExit(f"prompt{k}: peft gives logits that are not finite; look at the adapter's tensors")
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
    # The adapter's function is what peft computes in f64. Its f32 is one rounding of that and ours is another, so that the two
    # may be twice as far from each other as either is from the function.
    adapted.double()
    for row, (ids, ours) in zip(rows, prompts):
        exact = logits_of(adapted, ids)
        row["difference"] = float((exact - ours).abs().max())
        row["rounding"] = float((exact - row.pop("in_f32")).abs().max())
    return rows


def report(arguments, rows: list, passed: bool) -> str:
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
    lines += ["", f"peft {verdict} tooltune: the largest difference of a logit from peft in f64 is {worst(rows):.2e}, the limit {TOLERANCE:.0e}."]
    return "\n".join(lines)


def worst(rows: list) -> float:
    """The largest difference, or NaN if one is: Python's max would pass over it."""
    return float(torch.tensor([row["difference"] for row in rows], dtype=torch.float64).max())


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("adapter", type=Path, help="directory with adapter_config.json and adapter_model.safetensors")
    parser.add_argument("logits", type=Path, help="what `tooltune verify ADAPTER --logits FILE` wrote")
    parser.add_argument("--base", type=Path, default=None, help="a GGUF or a Hugging Face directory; default SmolLM2")
    parser.add_argument("--record", type=Path, help="Markdown file whose section is to be replaced")
    arguments = parser.parse_args()
    arguments.base = arguments.base or Path("models/smollm2-135m-instruct.gguf")
    for path in (arguments.adapter / "adapter_config.json", arguments.adapter / "adapter_model.safetensors"):
        if not path.is_file():
            raise SystemExit(f"{path}: no such file; write it with `tooltune export RUN --to peft --output DIR`")
    if not arguments.base.exists():
        raise SystemExit(f"{arguments.base}: no such base model; scripts/fetch-models fetches SmolLM2")
    logging.disable_progress_bar()
    prompts = prompts_of(arguments.logits)
    rows = compare(arguments.base, arguments.adapter, prompts)
    passed = worst(rows) <= TOLERANCE
    text = report(arguments, rows, passed)
    print(text)
    if arguments.record and passed:
        record(arguments.record, "scripts/verify/peft", "The exported adapter in peft", text)
    if not any(row["change"] > 100 * TOLERANCE for row in rows):
        print("The adapter hardly changes a logit: this run proves little.", file=sys.stderr)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
