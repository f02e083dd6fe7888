#!/usr/bin/env python3
"""Writes benchmarks/slot_e2e.md from a finished run directory; started by scripts/bench/slot_e2e, standard library only."""

import datetime
import hashlib
import json
import platform
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = ["schema_accuracy", "strict_keys_accuracy", "content_similarity", "exact_match_f", "exact_match"]
# peft 0.21.2 and torch 2.15.0, bf16 base, r 8, alpha 16, lr 1e-3, batch 4, 40 steps, dropout 0, the same rows, scored
# by a separate script: schema accuracy, mean F of content similarity, share of objects equal to their gold.
PEFT = {"before": {"schema_accuracy": 0.0, "content_similarity": 0.016, "exact_match": 0.0},
        "after": {"schema_accuracy": 1.0, "content_similarity": 0.929, "exact_match": 0.45}}


def lines(path: Path) -> list:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def processor() -> str:
    match = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return match.group(1) if match else platform.processor()


def row(name: str, values: dict) -> str:
    shown = [f"{values[c]:.3f}" if c in values else "-" for c in COLUMNS]
    return f"| {name} | {' | '.join(shown)} |"


def main() -> int:
    run, train, test = (Path(argument) for argument in sys.argv[1:4])
    metrics, timing = lines(ROOT / run / "metrics.jsonl"), lines(ROOT / run / "timing.jsonl")
    evaluations = [m for m in metrics if "eval/slot.mean" in m]
    before, after = ({c: e[f"eval/slot.{c}"] for c in COLUMNS} for e in (evaluations[0], evaluations[-1]))
    losses = [m["loss"] for m in metrics if "loss" in m]
    mean = lambda values: sum(values) / len(values)
    tokens, seconds = sum(t["tokens"] for t in timing), sum(t["seconds"] for t in timing)
    cpu = sum(t["cpu_seconds"] for t in timing)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    digest = lambda path: hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    text = "\n".join([
        "# SLOT on restaurant descriptions",
        "",
        "Written by `scripts/bench/slot_e2e`; 40 steps of batch 4, then 100 rows of the test file, greedy.",
        "",
        f"Commit {commit}, {datetime.date.today().isoformat()}, {processor()}; "
        f"train {digest(train)}, test {digest(test)} (sha256).",
        "",
        f"| | {' | '.join(COLUMNS)} |",
        "|---|" + "--:|" * len(COLUMNS),
        row("tooltune, base", before),
        row(f"tooltune, {evaluations[-1]['step']} steps", after),
        row("peft, base", PEFT["before"]),
        row("peft, 40 steps", PEFT["after"]),
        "",
        "peft's rows were measured once earlier, with separate scoring; exact_match is equality of the whole object.",
        f"Mean loss of steps 1-5, 16-20 and 36-40: {mean(losses[:5]):.3f}, {mean(losses[15:20]):.3f}, {mean(losses[35:]):.3f}.",
        f"Training: {tokens} tokens in {seconds:.0f} s, {cpu:.0f} CPU seconds; "
        f"peak memory of the process {max(t['peak_rss_bytes'] for t in timing) / 2**30:.2f} GiB.",
        "",
    ])
    target = ROOT / "benchmarks" / "slot_e2e.md"
    target.parent.mkdir(exist_ok=True)
    target.write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
