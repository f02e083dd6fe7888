"""Implementation of scripts/bench/memory: memory per token, and the prediction of `tooltune plan` compared with actual runs.

The first table is from `tooltune plan --probe` on the quickstart at increasing batch sizes. The second is from three
steps of random models of one shape in each family, built as in scripts/bench/families.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

from families import FAMILIES, make_model, write_inputs
from machine import ROOT, commit, cpu_name, say

CONFIG = "configs/quickstart.toml"
# hidden_size, num_hidden_layers of SmolLM2-135M; the f32 input of each layer is stored.
SAVED_BYTES_PER_TOKEN = 576 * 30 * 4
MIB = 1 << 20
KINDS = [(dtype, checkpointing) for dtype in ("f32", "bf16") for checkpointing in ("none", "full")]


def plan(tooltune: str, place: Path, *words: str) -> dict:
    command = [tooltune, "plan", *words, "--format", "json"]
    return json.loads(subprocess.run(command, cwd=place, check=True, capture_output=True, text=True).stdout)


def growth_table(tooltune: str) -> list:
    batch = "train.per_device_train_batch_size"
    probes = {n: plan(tooltune, ROOT, CONFIG, "--probe", "--set", f"{batch}={n}")["probe"] for n in (2, 4, 8, 16)}
    lines = [
        f"The longest micro-batch of `{CONFIG}` at four batch sizes, one real step each (SmolLM2-135M, dropout .05).",
        "",
        "| batch | tokens | before the step, MiB | peak, MiB | growth, MiB | saved layer inputs, MiB | rest, KiB per token |",
        "|--:|--:|--:|--:|--:|--:|--:|",
    ]
    before = None
    for size, row in probes.items():
        growth = saved = rest = "-"
        if before is not None:
            tokens = row["n_tokens"] - before["n_tokens"]
            grown = row["peak_rss_bytes"] - before["peak_rss_bytes"]
            growth = f"{grown / MIB:.0f}"
            saved = f"{tokens * SAVED_BYTES_PER_TOKEN / MIB:.0f}"
            rest = f"{(grown / tokens - SAVED_BYTES_PER_TOKEN) / 1024:.0f}"
        lines.append(
            f"| {size} | {row['n_tokens']} | {row['rss_before_step_bytes'] / MIB:.0f} "
            f"| {row['peak_rss_bytes'] / MIB:.0f} | {growth} | {saved} | {rest} |"
        )
        before = row
    return [*lines, "", "The rest is activations and their gradients: of layers that keep them, and of the layer being differentiated."]


def peak(tooltune: str, place: Path, sets: list) -> int:
    """Peak resident set of a run, in bytes.

    The rusage of an ended child starts with the memory that this process had when it forked. Instead, VmHWM of the
    running process is read, which never decreases.
    """
    child = subprocess.Popen(
        [tooltune, "train", "config.toml", *sets], cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    kib = 0
    while child.poll() is None:
        for line in Path(f"/proc/{child.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                kib = int(line.split()[1])
        time.sleep(0.01)
    if child.returncode:
        raise SystemExit(f"{place}: train {' '.join(sets)} failed")
    return kib * 1024


def family_table(tooltune: str) -> list:
    lines = [
        "Predicted peak / largest resident set of three steps in MiB, and their ratio; `none` keeps the activations of all "
        "blocks, `full` of none. Random models of 4 blocks of hidden size 1024, rank 8 on every linear layer, two SLOT rows a step.",
        "",
        "| `model_type` | " + " | ".join(f"{dtype}, {kept}" for dtype, kept in KINDS) + " |",
        "|---|" + "--:|" * len(KINDS),
    ]
    with tempfile.TemporaryDirectory() as place:
        place = Path(place)
        write_inputs(tooltune, place)
        for family in FAMILIES:
            make_model(family, place / family)
            cells = []
            for dtype, kept in KINDS:
                settings = [
                    f"model.model_name_or_path={family}",
                    f"model.compute_dtype={dtype}",
                    f"train.gradient_checkpointing={kept}",
                    "train.max_steps=3",
                ]
                sets = [word for setting in settings for word in ("--set", setting)]
                # The previous run had other settings.
                shutil.rmtree(place / "run", ignore_errors=True)
                predicted = plan(tooltune, place, "config.toml", *sets)["memory"]["peak_bytes"]
                measured = peak(tooltune, place, sets)
                cells.append(f"{predicted / MIB:.0f} / {measured / MIB:.0f} = {predicted / measured:.2f}")
            lines.append(f"| `{family}` | " + " | ".join(cells) + " |")
            say(lines[-1])
            shutil.rmtree(place / family)
    return lines


def main() -> int:
    tooltune = str(Path(sys.argv[1]).resolve())
    warnings.filterwarnings("ignore")
    lines = [
        "# Training memory",
        "",
        "Written by `scripts/bench/memory`; do not edit.",
        "",
        f"- commit {commit()}; {cpu_name()}",
        "",
        "## Memory per token",
        "",
        *growth_table(tooltune),
        "",
        "## Prediction of `plan`",
        "",
        *family_table(tooltune),
    ]
    (ROOT / "benchmarks" / "memory.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
