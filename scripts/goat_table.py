#!/usr/bin/env python3
"""Prints goat evaluations as one Markdown table; arguments are LABEL=FOLDER, with folders from `tooltune eval --output`."""

import json
import sys
from pathlib import Path

# Heading, report, metric, factor.
COLUMNS = [
    ("goat.sa %", "goat", "sa", 100),
    ("goat.ia %", "goat", "ia", 100),
    ("goat.sr %", "goat", "sr", 100),
    ("goat.correct_path %", "goat", "correct_path", 100),
    ("goat.delta_len", "goat", "delta_len", 1),
    ("goat.parse_error_rate %", "goat", "parse_error_rate", 100),
    ("goat.recall_at_gt %", "retrieval", "recall_at_gt", 100),
    ("goat.recall_at_5 %", "retrieval", "recall_at_5", 100),
]


def reports(folder: str) -> dict:
    path = Path(folder) / "metrics.json"
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SystemExit(f"{path}: {error}; create it with `tooltune eval RUN --suite goat --output {folder}`")


def cell(report: dict, metric: str, factor: float) -> str:
    estimate = report.get(metric)
    if estimate is None:
        return "-"
    value, low, high = (estimate[key] * factor for key in ("value", "low", "high"))
    return f"{value:.1f} [{low:.1f}, {high:.1f}]"


def main():
    print("| evaluation | n | " + " | ".join(heading for heading, *_ in COLUMNS) + " |")
    print("|---|--:|" + "--:|" * len(COLUMNS))
    for argument in sys.argv[1:]:
        label, folder = argument.rsplit("=", 1)
        found = reports(folder)
        cells = [cell(found[suite], metric, factor) for _, suite, metric, factor in COLUMNS]
        print(f"| {label} | {found['goat']['n']} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
