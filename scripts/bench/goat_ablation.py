#!/usr/bin/env python3
"""Plain LoRA, self-distillation and masked arguments on the same trajectories; standard library only.

Started by scripts/bench/goat_ablation. All variants share data, budget, seeds and the other settings of
configs/goat-quickstart.toml; all use the untrained retriever, so that only the language model differs. Each cell is the
mean over seeds, with the minimum and maximum.
"""

import json
import statistics
import subprocess
from pathlib import Path

from machine import ROOT, say
from page import Options, Page

VARIANTS = {
    "LoRA": [],
    "LoRA + self-distillation": ["train.self_distillation_alpha=0.5"],
    "LoRA + masked arguments": ["mask.arguments=all"],
}
SPLITS = {"seen": "test-seen", "unseen": "test-unseen"}
# Heading, metric, factor.
COMPARED = ["goat.sa", "goat.ia", "goat.sr", "goat.correct_path"]
METRICS = [("goat.sa %", "sa", 100), ("goat.ia %", "ia", 100), ("goat.sr %", "sr", 100), ("goat.correct_path %", "correct_path", 100)]


def run(*command) -> None:
    say("  " + " ".join(map(str, command)))
    subprocess.run([str(part) for part in command], cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class Ablation:
    """The folder and settings of all runs."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.dir = Path("runs/goat-ablation") / f"rows-{arguments.rows}"
        (ROOT / self.dir).mkdir(parents=True, exist_ok=True)
        # The quickstart's config without retriever training.
        lines = (ROOT / "configs/goat-quickstart.toml").read_text().splitlines()
        start = lines.index("[retriever]")
        end = next(i for i in range(start + 1, len(lines)) if lines[i].startswith("["))
        kept = [line for line in lines[start:end] if line.startswith(("[retriever]", "model_name_or_path"))]
        self.config = self.dir / "config.toml"
        (ROOT / self.config).write_text("\n".join([*lines[:start], *kept, "", *lines[end:]]) + "\n")

    def data(self) -> None:
        synth = [self.arguments.tooltune, "data", "synth", "goat"]
        # `data synth` refuses existing files.
        for name in ("train", *SPLITS, "one", "documents"):
            (ROOT / self.dir / f"{name}.jsonl").unlink(missing_ok=True)
        made = [("train", "train", self.arguments.rows), *((name, split, self.arguments.queries) for name, split in SPLITS.items())]
        for name, split, rows in made:
            run(*synth, "--split", split, "--rows", rows, "--output", self.dir / f"{name}.jsonl")
        run(*synth, "--rows", 1, "--output", self.dir / "one.jsonl", "--documents", self.dir / "documents.jsonl")

    def train(self, variant: str, seed: int) -> Path:
        folder = self.dir / f"{variant.replace(' ', '-')}-{seed}"
        settings = [
            "mask.arguments=none",
            *VARIANTS[variant],
            f"train.seed={seed}",
            f"train.output_dir={folder}",
            f"data.train=['{self.dir / 'train.jsonl'}']",
            f"data.eval=['{self.dir / 'seen.jsonl'}']",
            f"goat.documents={self.dir / 'documents.jsonl'}",
            "eval.eval_strategy=no",
            "eval.suites=['goat']",
            # Gives the same numbers faster.
            "train.gradient_checkpointing=none",
        ]
        options = [part for setting in settings for part in ("--set", setting)]
        run(self.arguments.tooltune, "train", self.config, *options)
        return folder

    def differences(self, folder: Path, plain: Path, split: str) -> list:
        """Rows of `tooltune compare`: the effect of a variant on the queries of a split, relative to plain LoRA."""
        command = [self.arguments.tooltune, "compare", *(one / f"eval-{split}" for one in (plain, folder)), "--show", "0"]
        done = subprocess.run([str(part) for part in command], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
        cells = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()]
        return [row for row in cells if row[0] in COMPARED]

    def evaluate(self, folder: Path, split: str) -> dict:
        output = folder / f"eval-{split}"
        if not (ROOT / output / "metrics.json").exists():
            data = ["--data", self.dir / f"{split}.jsonl", "--checkpoint", "last", "--output", output]
            run(self.arguments.tooltune, "eval", folder, "--suite", "goat", *data)
        return json.loads((ROOT / output / "metrics.json").read_text())["goat"]


def cell(values: list) -> str:
    values = [value for value in values if value is not None]
    if not values:
        return "-"
    return f"{statistics.mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def main():
    options = Options(__doc__)
    options.add_argument("--tooltune", required=True)
    options.add_argument("--rows", type=int, default=600, help="training trajectories")
    options.add_argument("--queries", type=int, default=100, help="queries per test split")
    options.add_argument("--seeds", type=int, default=3)
    arguments = options.parse_args()
    page = Page("goat_ablation", options.visible_arguments("--tooltune"), "benchmarks/goat_ablation.md")
    ablation = Ablation(arguments)
    ablation.data()
    found, differences = {}, []
    for seed in range(1, arguments.seeds + 1):
        for variant in VARIANTS:
            say(f"{variant}, seed {seed}")
            folder = ablation.train(variant, seed)
            for split in SPLITS:
                found.setdefault((variant, split), []).append(ablation.evaluate(folder, split))
                if variant == "LoRA":
                    plain = folder
                    continue
                for score, _, before, after, difference, p, *_ in ablation.differences(folder, plain, split):
                    differences.append(f"| {variant} | {split} | {seed} | {score} | {before} | {after} | {difference} | {p} |")
    table = ["| variant | tools | " + " | ".join(heading for heading, *_ in METRICS) + " |", "|---|---|" + "--:|" * len(METRICS)]
    for (variant, split), reports in found.items():
        cells = []
        for _, metric, factor in METRICS:
            estimates = [report.get(metric) for report in reports]
            cells.append(cell([estimate and estimate["value"] * factor for estimate in estimates]))
        table.append(f"| {variant} | {split} | " + " | ".join(cells) + " |")
    head = [
        "# Effect of masked arguments and self-distillation",
        "",
        f"GOAT's Table 12 at the size of SmolLM2-135M: {arguments.rows} trajectories, one epoch, {arguments.seeds} seed(s), "
        f"{arguments.queries} queries per split, documents from the untrained retriever. Mean (minimum to maximum) over seeds.",
        "",
        *page.origin("tooltune only"),
        "",
    ]
    against = [
        "",
        "## Compared with plain LoRA, query by query",
        "",
        "`tooltune compare`: mean difference with the 95 % interval of the paired bootstrap, and its p-value.",
        "",
        "| variant | tools | seed | metric | LoRA | variant | difference | p |",
        "|---|---|--:|---|--:|--:|--:|--:|",
        *differences,
    ]
    page.write([*head, *table, *against])


if __name__ == "__main__":
    main()
