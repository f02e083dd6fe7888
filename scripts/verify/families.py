#!/usr/bin/env python3
"""Every family as a tiny random model: two steps on rows of SLOT, then scripts/verify/all on the run.

The shapes are those of scripts/fixtures/tiny_models.py, without the fields that llama.cpp has no place for; the vocabulary is that
of tests/fixtures/tiny_chat_model, in the tokenizer that transformers makes of it for the family. What scripts/verify/all prints is
read for the largest difference of a logit; it ends with an error where one is more than its limit.
"""

import argparse
import datetime
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# In place of the directory of this file, whose names would hide packages.
sys.path[0] = str(ROOT / "scripts")
sys.path.insert(1, str(ROOT / "scripts/fixtures"))

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from tiny_models import CONFIGS, SEED, fill_weights
from verification_section import record

TOKENIZER = ROOT / "tests/fixtures/tiny_chat_model"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
# A shape of each family; of two of them llama.cpp does not compute another one.
SHAPES = [name for name in CONFIGS if name not in ("mistral_window", "qwen3_5_text")]
SHARED = {"vocab_size": 1024, "max_position_embeddings": 4096, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0}
CONFIG = """
[model]
model_name_or_path = "{model}"
[lora]
r = 4
lora_alpha = 8
target_modules = "all-linear"
[data]
train = ["{rows}/train.jsonl"]
eval = ["{rows}/dev.jsonl"]
format = "slot"
max_length = 4096
[train]
output_dir = "{run}"
max_steps = 2
per_device_train_batch_size = 2
learning_rate = {learning_rate}
[eval]
encoder = "{encoder}"
eval_strategy = "no"
max_new_tokens = 24
"""
# Granite divides its logits by 8: two steps of the others' size would change no text.
LEARNING_RATES = {"granite": 0.2}
ENCODER = ROOT / "models/all-minilm-l6-v2"
# What scripts/verify/all says of each program: a column of the table, and the number in it.
COLUMNS = {
    "adapter in peft": r"peft agrees with tooltune: the largest difference of a logit from peft in f64 is (\S+), the limit",
    "merged in transformers": r"agrees with the checkpoint in transformers: \d+ prompts, largest difference of a logit (\S+) \(bound",
    "adapter in llama.cpp": r"llama\.cpp agrees with tooltune: the largest difference of a logit is (\S+), the limit",
    "whole model in llama.cpp": r"whole\.gguf: the largest difference of a logit is (\S+), the limit",
    "change by the adapter": r"\| 0 \| \d+ \|(?:[^|]*\|){4} (\S+) \|",
    "texts of both": r"whole\.gguf: of (\d+ texts \d+ are the same, \d+ differ after a tie), 0 are wrong",
}


def shape(name: str) -> dict:
    """A config.json that llama.cpp can compute."""
    config = CONFIGS[name] | SHARED
    if name == "llama31":
        config["rope_scaling"] = config["rope_scaling"] | {"original_max_position_embeddings": 8192}
    if name == "phi3":
        config["sliding_window"] = None
    if name == "olmo3":
        full = {key: value for key, value in config["rope_parameters"]["full_attention"].items() if key != "attention_factor"}
        config["rope_parameters"] = config["rope_parameters"] | {"full_attention": full}
    config.pop("torch_dtype", None)
    config.pop("dtype", None)
    return config


def write_model(name: str, folder: Path) -> None:
    folder.mkdir(parents=True)
    fields = shape(name)
    config = AutoConfig.for_model(fields["model_type"], **{key: value for key, value in fields.items() if key != "model_type"})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    fill_weights(model, torch.Generator().manual_seed(SEED))
    model.save_pretrained(folder)
    for file in TOKENIZER_FILES:
        shutil.copy(TOKENIZER / file, folder)
    AutoTokenizer.from_pretrained(folder).save_pretrained(folder)


def ran(*command, **more) -> str:
    done = subprocess.run([str(part) for part in command], cwd=ROOT, capture_output=True, text=True, **more)
    if done.returncode != 0:
        words = " ".join(map(str, command))
        raise SystemExit(f"{words}\nended with status {done.returncode}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def verified(name: str, tooltune: Path, folder: Path) -> dict:
    """The numbers of a family, by the columns of the table."""
    write_model(name, folder / "model")
    for split, n_rows in (("train", 4), ("dev", 2)):
        ran(tooltune, "data", "synth", "slot", "--split", split, "--rows", n_rows, "--output", folder / f"{split}.jsonl")
    config, run = folder / "config.toml", folder / "run"
    fields = {"model": folder / "model", "rows": folder, "run": run, "encoder": ENCODER}
    fields["learning_rate"] = LEARNING_RATES.get(name, 0.02)
    config.write_text(CONFIG.format(**fields), encoding="utf-8")
    ran(tooltune, "train", config)
    printed = ran("scripts/verify/all", run, "last")
    numbers = {}
    for column, pattern in COLUMNS.items():
        found = re.search(pattern, printed)
        if found is None:
            raise SystemExit(f"{name}: scripts/verify/all says nothing of {column}:\n{printed}")
        numbers[column] = found[1]
    return numbers


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help=f"some of {', '.join(SHAPES)}; all by default")
    parser.add_argument("--record", action="store_true", help="write the table into docs/verification.md")
    arguments = parser.parse_args()
    for name in arguments.shapes:
        if name not in SHAPES:
            parser.error(f"{name} is none of {', '.join(SHAPES)}")
    if arguments.record and arguments.shapes:
        parser.error("--record is for all families: name none")
    logging.disable_progress_bar()
    tooltune = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "release/tooltune"
    rows = [f"| `model_type` | {' | '.join(COLUMNS)} |", "|---" * (1 + len(COLUMNS)) + "|"]
    print("\n".join(rows), flush=True)
    for name in arguments.shapes or SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            numbers = verified(name, tooltune, Path(folder))
        rows.append(f"| `{CONFIGS[name]['model_type']}` | {' | '.join(numbers.values())} |")
        print(rows[-1], flush=True)
    if arguments.record:
        text = (
            "Tiny random models with tensors in f32, trained for two steps, "
            f"{datetime.date.today().isoformat()}: the largest difference of a logit between each program and tooltune, and the "
            "largest change that the adapter makes.\n\n" + "\n".join(rows)
        )
        record(ROOT / "docs/verification.md", "scripts/verify/families", "Every family", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
