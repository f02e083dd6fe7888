#!/usr/bin/env python3
"""Trains a tiny random model of each family for two steps, from a folder and from a GGUF file, and loads every export.

The shapes come from tests/fixtures/models, without the fields that llama.cpp does not support; the vocabulary comes from
tests/fixtures/tiny_chat_model. Each run is exported as a merged folder, a PEFT folder, a GGUF adapter and a whole GGUF model, all in
f32, and transformers, peft and llama.cpp must compute the logits of `tooltune verify --logits`. The merged folder must also load as
the original model: its config fields, their types, its special tokens and its chat prompts are compared with the original folder.
"""

import argparse
import datetime
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Replaces the directory of this file, whose modules would hide packages.
sys.path[0] = str(ROOT / "scripts")
sys.path.insert(1, str(ROOT / "scripts/fixtures"))

import torch
from peft import PeftModel
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import logging

from hf_logits import logits_of, prompts_of
from model_families import configs, families, supported_config
from tiny_models import SEED, fill_weights
from verification_section import record
from verify.merged import compared

TOKENIZER = ROOT / "tests/fixtures/tiny_chat_model"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
# One shape per family. llama.cpp does not support the two that are left out.
SHAPES = [name for name in configs() if name not in ("mistral_window", "qwen3_5_text")]
SHARED = {"vocab_size": 1024, "max_position_embeddings": 4096, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0}
CONFIG = """
[model]
model_name_or_path = "{model}"
[lora]
r = 4
lora_alpha = 8
target_modules = "all-linear"
[data]
train = ["train.jsonl"]
eval = ["dev.jsonl"]
format = "slot"
max_length = 4096
[train]
output_dir = "{run}"
max_steps = 2
per_device_train_batch_size = 2
learning_rate = {learning_rate}
[eval]
eval_strategy = "no"
max_new_tokens = 24
"""
# Granite divides its logits by 8, so two steps with the default rate would not change a completion.
LEARNING_RATES = {"granite": 0.2}
PEFT_BOUND = 1e-4
# If the adapter changes every logit by less, agreement proves nothing.
LEAST_CHANGE = 1.0
# Fields that change no logit of inference: GGUF does not have them, so a model from GGUF gets the defaults of transformers.
NOT_IN_GGUF = {
    "attention_dropout", "dtype", "embd_pdrop", "initializer_range", "max_window_layers", "resid_pdrop", "residual_dropout", "use_cache",
    "rope_parameters.type",
}  # fmt: skip
# Fields that the export from GGUF also writes for families whose config in transformers derives them or does not have them.
EXTRA_FROM_GGUF = {"attention_bias", "head_dim", "hidden_act", "mlp_bias", "rope_local_base_freq"}
EXTRA_FROM_GGUF |= {"rope_parameters.attention_factor"}
CHAT = [{"role": "user", "content": "When?"}, {"role": "assistant", "content": "Now."}, {"role": "user", "content": "Grüße, 東京 🙂"}]
COLUMNS = ("merged in transformers", "adapter in peft", "adapter in llama.cpp", "whole model in llama.cpp")
PACKAGES = ("torch", "transformers", "peft", "tokenizers")


def shape(name: str) -> dict:
    """A config.json that llama.cpp can compute."""
    config = supported_config(name) | SHARED
    if name == "llama31":
        config["rope_scaling"] = config["rope_scaling"] | {"original_max_position_embeddings": 8192}
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


def ran(folder: Path, *command) -> str:
    done = subprocess.run([str(part) for part in command], cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        words = " ".join(map(str, command))
        raise SystemExit(f"{words}\nended with status {done.returncode}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def differing(path: str, found, expected, is_f32: bool):
    """Yields a line per difference in value or type. With `is_f32`, numbers are compared after rounding to f32, as GGUF stores them."""
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in sorted(found.keys() | expected.keys(), key=str):
            yield from differing(f"{path}.{key}" if path else str(key), found.get(key), expected.get(key), is_f32)
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        for index, pair in enumerate(zip(found, expected)):
            yield from differing(f"{path}[{index}]", *pair, is_f32)
    elif type(found) is not type(expected) or (rounded(found) != rounded(expected) if is_f32 else found != expected):
        yield f"{path} is {found!r}, expected {expected!r}"


def rounded(value):
    return torch.tensor(value, dtype=torch.float32).item() if isinstance(value, float) else value


def is_of_class(line: str) -> bool:
    """Whether a difference is the class of a model, or a field that only one of two classes has."""
    return re.match(r"(architectures|model_type)\b", line) is not None or re.search(r" is None, | expected None$", line) is not None


def load_faults(merged: Path, model: Path, is_from_gguf: bool) -> list:
    """Returns the differences from the original model as lines: config fields, special tokens, stop tokens, tokens of a chat."""
    configs = [AutoConfig.from_pretrained(folder).to_dict() | {"_name_or_path": ""} for folder in (merged, model)]
    stops = [GenerationConfig.from_pretrained(folder).eos_token_id for folder in (merged, model)]
    if is_from_gguf:
        # As in Llama 3, config.json has all stop tokens.
        configs[1]["eos_token_id"] = stops[1]
    lines = list(differing("", *configs, is_from_gguf))
    if is_from_gguf:
        lines = [line for line in lines if re.split(r"[ \[]", line)[0] not in NOT_IN_GGUF]
        if not families()[configs[1]["model_type"]]["reads_architecture"]:
            # Its GGUF files are read as another family.
            lines = [line for line in lines if not is_of_class(line)]
        lines = [line for line in lines if not (line.split(" ")[0] in EXTRA_FROM_GGUF and line.endswith("expected None"))]
    tokenizers = [AutoTokenizer.from_pretrained(folder) for folder in (merged, model)]
    for role in ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "all_special_ids"):
        found, expected = (getattr(tokenizer, role) for tokenizer in tokenizers)
        if found != expected:
            lines.append(f"the tokenizer's {role} is {found}, expected {expected}")
    prompts = [tokenizer.apply_chat_template(CHAT, add_generation_prompt=True)["input_ids"] for tokenizer in tokenizers]
    if prompts[0] != prompts[1]:
        lines.append(f"the tokens of a chat are {prompts[0]}, expected {prompts[1]}")
    found, expected = (set(ids if isinstance(ids, list) else [ids]) for ids in stops)
    if found != expected:
        lines.append(f"generation stops at {found}, expected {expected}")
    return lines


def in_peft(model: Path, adapter: Path, logits: Path) -> tuple:
    """Returns the largest difference of a logit in peft, and the largest change of a logit by the adapter."""
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager").eval()
    prompts = prompts_of(logits)
    alone = [logits_of(base, ids) for ids, _ in prompts]
    adapted = PeftModel.from_pretrained(base, adapter).eval()
    differences, changes = [], []
    for (ids, ours), without in zip(prompts, alone):
        theirs = logits_of(adapted, ids)
        differences.append(float((theirs - ours).abs().max()))
        changes.append(float((theirs - without).abs().max()))
    return float(torch.tensor(differences).max()), float(torch.tensor(changes).max())


def number(pattern: str, printed: str) -> str:
    found = re.search(pattern, printed)
    if found is None:
        raise SystemExit(f"expected {pattern!r} in the output:\n{printed}")
    return found[1]


def from_base(arguments, name: str, folder: Path, model: str, run: str) -> dict:
    """Trains from `model`, exports, compares every export, and returns the numbers by column."""
    tooltune, is_from_gguf = arguments.tooltune, model.endswith(".gguf")
    fields = {"model": model, "run": run, "learning_rate": LEARNING_RATES.get(name, 0.02)}
    (folder / f"{run}.toml").write_text(CONFIG.format(**fields), encoding="utf-8")
    ran(folder, tooltune, "train", f"{run}.toml", "--threads", 1)
    last = ["--checkpoint", "last"]
    f32 = ["--set", "model.compute_dtype=f32"]
    exports = {"merged": ["--to", "merged"], "peft": ["--to", "peft"], "adapter.gguf": ["--to", "gguf"], "whole.gguf": ["--to", "gguf", "--merged"]}
    for output, to in exports.items():
        ran(folder, tooltune, "export", run, *last, *to, "--dtype", "f32", "--output", f"{run}-{output}")
    if not is_from_gguf:
        ran(folder, tooltune, "export", run, "--checkpoint", "base", "--to", "gguf", "--merged", "--dtype", "f32", "--output", "base.gguf")
    ran(folder, tooltune, "verify", run, *last, "--rows", 2, "--logits", f"{run}.safetensors", "--threads", 1)
    ran(folder, tooltune, "generate", run, *last, *f32, "--max-samples", 2, "--output", f"{run}.jsonl", "--threads", 1)
    logits = folder / f"{run}.safetensors"
    merged = compared(folder / f"{run}-merged", logits)
    wrong = load_faults(folder / f"{run}-merged", folder / "model", is_from_gguf)
    if not merged["agrees"] or merged["dtypes"] != {"F32"}:
        wrong.append(f"transformers gives different logits or dtypes: {merged}")
    peft, change = in_peft(folder / "model", folder / f"{run}-peft", logits)
    # The largest rounding error so far is 9.7e-5; a missing module or a wrong scaling gives a thousand times that.
    if not peft <= PEFT_BOUND:
        wrong.append(f"peft differs by {peft:.2e}, the limit is {PEFT_BOUND:.0e}")
    if not change >= LEAST_CHANGE:
        wrong.append(f"the adapter changes logits by only {change:.2e}, so agreement proves little")
    if wrong:
        raise SystemExit(f"{name}, from {model}:\n  " + "\n  ".join(wrong))
    python = [arguments.llama_cpp_python, "-W", "ignore"]
    base, threads = ["--base", "base.gguf"], ["--threads", 1]
    printed = ran(folder, *python, ROOT / "scripts/verify/llama_cpp.py", f"{run}-adapter.gguf", logits, *base, *threads)
    adapter = number(r"llama\.cpp agrees with tooltune: the largest difference of a logit is (\S+), the limit", printed)
    printed = ran(folder, *python, ROOT / "scripts/verify/merged_gguf.py", f"{run}-whole.gguf", f"{run}.jsonl", "--logits", logits, *threads)
    whole = number(r"whole\.gguf: the largest difference of a logit is (\S+), the limit", printed)
    number(r"whole\.gguf: of (2 texts \d are the same, \d differ after a tie, 0 are wrong)", printed)
    return dict(zip(COLUMNS, (f"{merged['worst']:.2e}", f"{peft:.2e}", adapter, whole))) | {"change": change}


def verified(arguments, name: str, folder: Path) -> list:
    """Returns the table cells of a family."""
    write_model(name, folder / "model")
    for split, n_rows in (("train", 4), ("dev", 2)):
        ran(folder, arguments.tooltune, "data", "synth", "slot", "--split", split, "--rows", n_rows, "--output", f"{split}.jsonl")
    by_base = [from_base(arguments, name, folder, model, run) for model, run in (("model", "folder"), ("base.gguf", "gguf"))]
    cells = [f"{of_folder[column]}, {of_gguf[column]}" for of_folder, of_gguf in [by_base] for column in COLUMNS]
    return [*cells, f"{min(found['change'] for found in by_base):.2f}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help=f"one or more of {', '.join(SHAPES)}; all by default")
    parser.add_argument("--record", action="store_true", help="write the table into benchmarks/verification.md")
    parser.add_argument("--keep", type=Path, help="folder for the models and exports of each shape; removed by default")
    parser.add_argument("--tooltune", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--llama-cpp-python", type=Path, required=True, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for name in arguments.shapes:
        if name not in SHAPES:
            parser.error(f"unknown shape {name}; use {', '.join(SHAPES)}")
    if arguments.record and arguments.shapes:
        parser.error("--record needs all families; omit the names")
    for name in ("tooltune", "llama_cpp_python"):
        setattr(arguments, name, getattr(arguments, name).absolute())
    logging.disable_progress_bar()
    # A second thread costs more than it saves on models of this size.
    torch.set_num_threads(1)
    rows = [f"| `model_type` | {' | '.join(COLUMNS)} | change by the adapter |", "|---" * (2 + len(COLUMNS)) + "|"]
    print("\n".join(rows), flush=True)
    failed = []
    for name in arguments.shapes or SHAPES:
        with tempfile.TemporaryDirectory() as place:
            folder = arguments.keep / name if arguments.keep else Path(place)
            folder.mkdir(parents=True, exist_ok=True)
            try:
                cells = verified(arguments, name, folder.absolute())
            except SystemExit as fault:
                failed.append(name)
                print(fault, file=sys.stderr, flush=True)
                continue
        rows.append(f"| `{configs()[name]['model_type']}` | {' | '.join(cells)} |")
        print(rows[-1], flush=True)
    if failed:
        print(f"verify/families: exports of {', '.join(failed)} differ", file=sys.stderr)
        return 1
    if arguments.record:
        versions = [f"{package} {importlib.metadata.version(package)}" for package in PACKAGES]
        command = [arguments.llama_cpp_python, "-c", "import importlib.metadata as m; print('xllamacpp', m.version('xllamacpp'))"]
        versions.append(ran(ROOT, *command).strip())
        text = (
            f"Tiny random models in f32, trained for two steps; {datetime.date.today().isoformat()}, {', '.join(versions)}.\n"
            "Each cell is the largest difference of a logit from tooltune, for a run from a folder and for a run from a GGUF file.\n"
            "Merged folders also load with the config fields, special tokens, stop tokens and chat tokens of the original model.\n\n"
            + "\n".join(rows)
        )
        record(ROOT / "benchmarks/verification.md", "scripts/verify/families", "Every family", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
