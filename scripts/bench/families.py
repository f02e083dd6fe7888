"""Implementation of scripts/bench/families: trains random models of the same shape in each family for a few steps on
synthetic rows.

Measures CPU time on one thread, so that other programs have little effect; startup time cancels, because a shorter run
is subtracted.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

from machine import ROOT, commit, cpu_name, say

sys.path.insert(1, str(ROOT / "scripts"))

from model_families import model_types

SHAPE = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 1024,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 8192,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 4096}
# Fields that families need, or whose default would hide a part of their network.
FIELDS = {
    "mistral": {"sliding_window": 256},
    "granite": {"embedding_multiplier": 12.0, "attention_multiplier": 1 / 64, "residual_multiplier": 0.22},
    "phi3": {"partial_rotary_factor": 0.75},
    "seed_oss": {"attention_bias": True},
    "olmo3": {"sliding_window": 256},
    "gemma3_text": {"sliding_window": 256, "hidden_activation": "gelu_pytorch_tanh"},
    "ministral3": {"rope_parameters": YARN | {"llama_4_scaling_beta": 0.1}},
    # Three layers of linear attention and one of gated attention: a fiftieth larger in total.
    "qwen3_5_text": {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    },
}
FAMILIES = model_types()
CONFIG = """device = "cpu"
[model]
compute_dtype = "bf16"
[lora]
r = 8
lora_alpha = 16
target_modules = "all-linear"
[data]
train = ["train.jsonl"]
format = "slot"
max_length = 4096
[train]
output_dir = "run"
per_device_train_batch_size = 2
learning_rate = 1e-4
[checkpoint]
save_steps = 1000
"""


def make_model(family: str, folder: Path):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = SHAPE | {"model_type": family} | FIELDS.get(family, {})
    if "rope_parameters" in config:
        del config["rope_theta"]
    folder.mkdir()
    text = json.dumps(config)
    (folder / "config.json").write_text(text)
    torch.manual_seed(7)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.bfloat16).save_pretrained(folder)
    (folder / "config.json").write_text(text)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(ROOT / "tests/fixtures/tiny_chat_model" / name, folder)


def write_inputs(program: str, folder: Path) -> None:
    """Writes the config and the rows of the runs; each run sets its model."""
    rows = "data synth slot --split train --rows 40 --output train.jsonl".split()
    subprocess.run([program, *rows], cwd=folder, check=True, capture_output=True)
    (folder / "config.toml").write_text(CONFIG)


def seconds(program: str, place: Path, family: str, steps: int) -> float:
    """CPU time of a run with this number of steps."""
    shutil.rmtree(place / "run", ignore_errors=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    model, length = f"model.model_name_or_path={place / family}", f"train.max_steps={steps}"
    subprocess.run(
        [program, "train", "config.toml", "--set", model, "--set", length],
        cwd=place,
        env=dict(os.environ, RAYON_NUM_THREADS="1", RUST_LOG="error"),
        check=True,
        capture_output=True,
    )
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    arguments = parser.parse_args()
    program = str(Path(arguments.program).resolve())
    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory() as place:
        place = Path(place)
        write_inputs(program, place)
        for family in FAMILIES:
            make_model(family, place / family)
        found = {family: [] for family in FAMILIES}
        for _ in range(arguments.rounds):
            for family, steps in found.items():
                more = seconds(program, place, family, arguments.steps + 1) - seconds(program, place, family, 1)
                steps.append(more / arguments.steps)
                say(f"{family}: {steps[-1]:.3f} s")
    ratios = {
        family: [ours / llama for ours, llama in zip(steps, found["llama"])] for family, steps in found.items()
    }
    lines = [
        "# Training step by model family",
        "",
        "Written by `scripts/bench/families`; do not edit.",
        "",
        f"- commit {commit()}; {cpu_name()}; one thread, bf16, CPU time",
        f"- random models of hidden size {SHAPE['hidden_size']} with {SHAPE['num_hidden_layers']} blocks and a small vocabulary, "
        "so that the LM head does not hide differences between families; rank 8 on every linear layer, two rows per step",
        f"- {arguments.rounds} rounds of {arguments.steps} steps, alternating families; cells are medians, ratios medians over rounds",
        "",
        "| `model_type` | s a step | relative to a Llama of equal size |",
        "|---|--:|--:|",
    ]
    for family, steps in found.items():
        lines.append(f"| `{family}` | {statistics.median(steps):.2f} | {statistics.median(ratios[family]):.2f} |")
    (ROOT / "benchmarks/families.md").write_text("\n".join(lines) + "\n")
    say("benchmarks/families.md written")


if __name__ == "__main__":
    main()
