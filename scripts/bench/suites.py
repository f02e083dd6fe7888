#!/usr/bin/env python3
"""Evaluates runs on every suite, freely and constrained, and writes benchmarks/suites.md; started by scripts/bench/suites.

A run with a language model is evaluated on `slot` or `goat`, depending on the format of its rows, and on `nestful` and
`toolqa` if their files are given; a run with a retriever on `retrieval`. Existing evaluations are reused.
"""

import json
import subprocess
import tomllib
from pathlib import Path

from machine import ROOT, say
from page import Options, Page

# The reported metrics of each suite: names in metrics.json, and whether constrained decoding can change them.
METRICS = {
    "slot": (["parse_rate", "schema_accuracy", "strict_keys_accuracy", "content_similarity", "exact_match_f", "exact_match"], True),
    "goat": (["sa", "ia", "sr", "correct_path", "parse_error_rate"], True),
    "nestful": (["partial", "full", "win_strict", "parse_error_rate"], True),
    "toolqa": (["exact_match", "exact_match_strict", "contains"], False),
    "retrieval": (["recall_at_gt", "recall_at_5", "mrr_at_10"], False),
}
# The columns: checkpoint, and whether decoding is constrained.
SIDES = [("base", False), ("base", True), ("best", False), ("best", True)]


def options_of(arguments, suite: str) -> list:
    rows = [] if suite == "retrieval" else ["--max-samples", str(arguments.rows)]
    if suite in ("nestful", "toolqa"):
        rows += ["--set", f"eval.max_new_tokens={arguments.max_new_tokens}"]
    if suite == "nestful":
        return [*rows, "--data", arguments.nestful, "--set", "eval.nestful.n_examples=1"]
    if suite == "toolqa":
        return [*rows, "--data", arguments.toolqa, "--set", f"eval.toolqa.responses={arguments.responses}", "--set", "eval.toolqa.reduce=paths"]
    return rows + (["--data", arguments.slot] if suite == "slot" and arguments.slot else [])


def suites_of(arguments, run: Path) -> list:
    config = tomllib.loads((run / "config.resolved.toml").read_text())
    suites = []
    if "model" in config:
        suites += [name for name in ("slot", "goat") if config["data"]["format"] == name]
        suites += ["nestful"] if arguments.nestful else []
        suites += ["toolqa"] if arguments.toolqa and arguments.responses else []
    return suites + (["retrieval"] if "retriever" in config else [])


def evaluated(arguments, run: Path, suite: str, checkpoint: str, constrained: bool) -> dict:
    folder = ROOT / "runs/bench-suites" / run.name / f"{suite}-{checkpoint}-{'constrained' if constrained else 'free'}"
    metrics = folder / "metrics.json"
    if not metrics.exists():
        say(f"{run}: {suite}, {checkpoint}{', constrained' if constrained else ''}")
        command = [arguments.tooltune, "eval", str(run), "--suite", suite, "--checkpoint", checkpoint, "--output", str(folder),
                   *options_of(arguments, suite)]
        command += ["--set", "eval.constrained=true"] if constrained else []
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise SystemExit(done.stderr)
    unsupported = folder / "unsupported_schemas.jsonl"
    found = json.loads(metrics.read_text())
    found["n_unsupported"] = len(unsupported.read_text().splitlines()) if unsupported.exists() else 0
    return found


def estimate(report: dict, suite: str, name: str):
    """The value of a metric; agents store it under the name of their suite."""
    found = report.get(suite, report).get(name)
    return found["value"] if isinstance(found, dict) else found


def main() -> None:
    options = Options(__doc__, wrapper=("--tooltune",))
    options.add_argument("runs", nargs="+", type=Path, help="run directories")
    options.add_argument("--rows", type=int, default=40, help="rows per suite, from the start")
    options.add_argument("--max-new-tokens", type=int, default=256, help="maximum tokens of nestful and toolqa answers")
    options.add_argument("--slot", default="", help="SLOT rows instead of the run's data.eval, for example unseen ones")
    options.add_argument("--nestful", default="", help="rows in NESTFUL's format")
    options.add_argument("--toolqa", default="", help="questions about tool outputs")
    options.add_argument("--responses", default="", help="the tool responses for --toolqa")
    options.add_argument("--output", default="benchmarks/suites.md")
    arguments = options.parse_args()
    files = {arguments.slot, arguments.nestful, arguments.toolqa, arguments.responses}
    page = Page("suites", ["FILE" if argument in files else argument for argument in options.visible_arguments()], arguments.output)
    lines = []
    notes = []
    for run in arguments.runs:
        for suite in suites_of(arguments, run):
            names, is_constrained = METRICS[suite]
            sides = [side for side in SIDES if is_constrained or not side[1]]
            reports = {side: evaluated(arguments, run, suite, *side) for side in sides}
            for name in names:
                cells = [estimate(reports[side], suite, name) if side in reports else None for side in SIDES]
                if all(cell is None for cell in cells):
                    continue
                shown = ["-" if cell is None else f"{cell * 100:.1f}" for cell in cells]
                n = reports[sides[0]].get(suite, reports[sides[0]])["n"]
                lines.append(f"| {run.name} | {suite} | {n} | {name} | " + " | ".join(shown) + " |")
            unsupported = [report["n_unsupported"] for side, report in reports.items() if side[1]]
            if suite == "slot":
                notes.append(f"- {run.name}: {unsupported[0]} of {arguments.rows} rows have a schema that cannot be enforced")
    page.write([
        *page.head("Suites by adapters, free and constrained", "greedy; per cent; the model without an adapter and the best checkpoint"),
        f"- at most {arguments.rows} rows of each suite; prompts of nestful with one example, responses of toolqa reduced by paths; "
        f"their answers have at most {arguments.max_new_tokens} tokens",
        *notes,
        "",
        "| run | suite | rows | metric | base | base, constrained | best | best, constrained |",
        "|---|---|--:|---|--:|--:|--:|--:|",
        *lines,
    ])


if __name__ == "__main__":
    main()
