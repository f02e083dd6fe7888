#!/usr/bin/env python3
"""Writes the measurements of scripts/goat-from-documents as a section of benchmarks/goat_from_documents.md.

    goat_from_documents.py oracle|local FOLDER SECONDS

The folder has times_KIND.begin and times_KIND.end, written by the shell's `times`.
"""

import datetime
import json
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts/bench"))

from goat_oracle import HOPES, MISSES, SLIPS
from goat_table import cell
from machine import commit, cpu_name
from verification_section import record

OUTPUT = ROOT / "benchmarks/goat_from_documents.md"
SCRIPT = "scripts/goat-from-documents"
HEAD = """# GOAT from API documents

Measurements of `scripts/goat-from-documents`: GOAT's data pipeline on the documents of the 63 synthetic APIs, and training on its
trajectories. The true edges are known (`data synth goat --edges`), so each filter has a precision and a recall, as in the
paper's Table 7; the paper's values, for LLaMA-3-70B on RapidAPI, are precisions of 0.25, 0.59, 0.90 and recalls of 0.92, 0.42, 0.36.

"""
# Heading, report, metric.
COLUMNS = [
    ("Recall@5 %", "retrieval", "recall_at_5"),
    ("Recall@GT %", "retrieval", "recall_at_gt"),
    ("SA %", "goat", "sa"),
    ("IA %", "goat", "ia"),
    ("SR %", "goat", "sr"),
]
EVALUATIONS = [
    ("base, seen tools", "base-seen"),
    ("trained, seen tools", "best-seen"),
    ("base, unseen tools", "base-unseen"),
    ("trained, unseen tools", "best-unseen"),
]


def read(path: Path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SystemExit(f"{path}: {error}; run {SCRIPT} to completion")


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def table(header: list, rows: list) -> str:
    out = [f"| {' | '.join(header)} |", f"|---|{'--:|' * (len(header) - 1)}"]
    return "\n".join(out + [f"| {' | '.join(str(value) for value in row)} |" for row in rows])


def stages(folder: Path) -> str:
    """What each stage kept, and the reasons for what it dropped."""
    report = read(folder / "report.json")["stages"]
    rows, reasons = [], []
    for stage in report:
        requests = stage.get("requests", {})
        calls = stage.get("counts", {}).get("API calls", 0)
        dropped = sum(stage["dropped"].values())
        counted = [requests.get("n_replies", 0), requests.get("n_asked_again", 0), calls]
        rows.append([stage["stage"], stage["n_in"], stage["n_kept"], dropped, *counted])
        reasons += [f"- `{stage['stage']}` {count}: {reason}" for reason, count in sorted(stage["dropped"].items())]
    head = ["stage", "in", "kept", "dropped", "replies", "asked again", "API calls"]
    return f"{table(head, rows)}\n\nDropped, by the reason:\n\n" + "\n".join(reasons)


def edges(folder: Path) -> str:
    name = {"all": "over-complete graph", "graph": "similarity", "filter": "model", "execute": "execution"}
    part = lambda value: "-" if value is None else f"{value:.2f}"
    rows = [
        [name[score["stage"]], score["n_edges"], score["n_right"], part(score["precision"]), part(score["recall"])]
        for score in read(folder / "edge_scores.json")
    ]
    return table(["edges after", "edges", "right", "precision", "recall"], rows)


def of_oracle(data: Path) -> str:
    made = data / "made"
    scores = []
    for label, folder in EVALUATIONS:
        found = read(data / "eval" / folder / "metrics.json")
        scores.append([label, found["goat"]["n"], *(cell(found[suite], metric, 100) for _, suite, metric in COLUMNS)])
    splits = {name: lines(made / f"{name}.jsonl") for name in ("train", "dev", "test_seen", "test_unseen")}
    counts = ", ".join(f"{count} in {name}.jsonl" for name, count in splits.items())
    parts = [
        f"`scripts/goat_oracle.py` knows the synthetic APIs and errs on purpose: it accepts one of {HOPES} wrong edges to required "
        f"parameters, misses one of {MISSES} true ones, and writes one reply of {SLIPS} that is not JSON. Its queries name their steps in "
        "order, so plans and documents are easier to find than in queries written by people.",
        edges(made),
        stages(made),
        f"Rows: {counts}; {lines(made / 'pairs.jsonl')} pairs for the retriever. BeastPark and ArtHall are held out. The seen test is "
        f"{lines(data / 'seen/test_seen.jsonl')} rows over sub-graphs of training with other values (`--seen-from`).",
        "One epoch of configs/goat-quickstart.toml over the rows of training, model and retriever in one run. The adapter uses documents "
        "from the retriever trained with it, and the base from the untrained one. Recall is measured on the gold sub-queries, among the first "
        "five documents and among the first n for n gold documents. Intervals are 95 % "
        "bootstrap.",
        table(["evaluation", "n", *(heading for heading, *_ in COLUMNS)], scores),
    ]
    return "\n\n".join(parts)


def of_local(data: Path) -> str:
    parts = [
        "SmolLM2-135M-Instruct writes every reply under its JSON Schema: the documents of RoomKey, MoneyMill and ClockBox, the 60 "
        "most alike edges, at most 12 tasks. A model of this size is too small to generate data and cannot guess what exists in the "
        "invented world; the tables show how the stages handle that.",
        edges(data / "local"),
        stages(data / "local"),
    ]
    return "\n\n".join(parts)


def computed(path: Path) -> float:
    """User plus system seconds of a shell's children, the second line of `times`."""
    found = re.findall(r"(\d+)m([\d.]+)s", path.read_text().splitlines()[1])
    return sum(60 * float(minutes) + float(seconds) for minutes, seconds in found)


def main():
    kind, data, seconds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    spent = computed(data / f"times_{kind}.end") - computed(data / f"times_{kind}.begin")
    load = os.getloadavg()[2]
    where = (
        f"{datetime.date.today()}, commit {commit()}, {os.cpu_count()} cores of {cpu_name()} with a load average of {load:.1f} over "
        f"15 minutes: {seconds // 60} min {seconds % 60} s after the build, {spent / 60:.1f} min of one core "
        "(without stages that were skipped)."
    )
    titles = {"oracle": "Generated by the oracle", "local": "Generated by SmolLM2-135M under constraints"}
    text = of_oracle(data) if kind == "oracle" else of_local(data)
    if not OUTPUT.exists():
        OUTPUT.write_text(HEAD)
    record(OUTPUT, SCRIPT if kind == "oracle" else f"{SCRIPT} --local", titles[kind], f"{where}\n\n{text}")
    print(f"{where}\n\n{text}\n\nwritten to {OUTPUT.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
