#!/usr/bin/env python3
"""Runs examples/constrained_cost and writes benchmarks/constrained_cpu.md; started by scripts/bench/constrained.

For the same prompts (synthetic SLOT rows) it decodes the same number of tokens, alternating between free decoding and
decoding constrained to the rows' schemas. A step is one token of every row. `in the step` is the additional time of
constrained steps, with the minimum and maximum over the rounds; it is imprecise, as the difference of two large numbers.
`alone` is the time of the masks and token choices measured separately, as a share of a free step. It is everything that
a constraint adds, but without other work that uses the caches.
"""

import json
import statistics
import subprocess

from machine import ROOT, environment, say
from page import Options, Page

AIM = 0.05
CONFIG = """[model]
model_name_or_path = "models/smollm2-135m-instruct.gguf"
[lora]
[data]
train = ["runs/bench-constrained/train.jsonl"]
eval = ["runs/bench-constrained/dev.jsonl"]
format = "slot"
slot_prompt = "paper"
[train]
output_dir = "runs/bench-constrained/run"
"""


def measured(arguments, dtype: str, threads: int) -> list:
    command = [arguments.ours, "runs/bench-constrained/config.toml", dtype, str(arguments.new_tokens),
               str(arguments.rounds), *map(str, arguments.batches)]
    done = subprocess.run(command, cwd=ROOT, env=environment(threads, ""), capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def line(dtype: str, threads: int, row: dict) -> tuple:
    steps = row["steps"]
    free, held, alone = (statistics.median(row[key]) for key in ("free", "held", "alone"))
    # Each round is compared with its neighbours: machine speed drifts slowly, and distant rounds would not cancel it.
    ratios = [h / f - 1 for h, f in zip(row["held"], row["free"])]
    added = statistics.median(ratios)
    share = alone / (steps + 1) / (free / steps)
    per_token = alone / ((steps + 1) * row["batch"])
    cells = [dtype, str(threads), str(row["batch"]), f"{free / steps * 1e3:.2f}", f"{held / steps * 1e3:.2f}",
             f"{added * 100:+.1f} % ({min(ratios) * 100:+.1f} to {max(ratios) * 100:+.1f})", f"{share * 100:.2f} %", f"{per_token * 1e6:.1f}"]
    return added, "| " + " | ".join(cells) + " |"


def main() -> None:
    options = Options(__doc__, wrapper=("--tooltune", "--ours"))
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--new-tokens", type=int, default=24, help="tokens per row; the shortest answers have a few more")
    options.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    options.add_argument("--dtypes", nargs="+", default=["f32", "bf16"])
    options.add_argument("--threads", type=int, nargs="+", default=[2, 1])
    options.add_argument("--output", default="benchmarks/constrained_cpu.md")
    arguments = options.parse_args()
    folder = ROOT / "runs/bench-constrained"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(CONFIG)
    for split in ("train", "dev"):
        command = [arguments.tooltune, "data", "synth", "slot", "--split", split, "--rows", str(max(arguments.batches)),
                   "--output", str(folder / f"{split}.jsonl")]
        (folder / f"{split}.jsonl").unlink(missing_ok=True)
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    page = Page("constrained", options.visible_arguments(), arguments.output)
    lines, missed = [], []
    for threads in arguments.threads:
        for dtype in arguments.dtypes:
            say(f"{threads} thread(s), {dtype}")
            for row in measured(arguments, dtype, threads):
                added, text = line(dtype, threads, row)
                lines.append(text)
                if added > AIM:
                    missed.append(f"- {dtype}, {threads} thread(s), batch {row['batch']}: {added * 100:.1f} %")
    page.write([
        *page.head("Cost of constrained decoding", "SmolLM2-135M-Instruct, schemas of synthetic SLOT rows"),
        f"- {arguments.rounds} rounds of {arguments.new_tokens} tokens per row, alternating free and constrained; medians, of the ratio "
        "by rounds",
        "",
        "| type | threads | batch | free step, ms | constrained step, ms | in the step | alone | constraint per token, µs |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
        *lines,
        "",
        f"Aim: at most {AIM * 100:.0f} % of a step.",
        *(["", "Not reached:", "", *missed] if missed else []),
    ])


if __name__ == "__main__":
    main()
