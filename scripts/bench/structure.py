#!/usr/bin/env python3
"""Structures the same rows with tooltune and transformers and writes benchmarks/structure.md; started by scripts/bench/structure.

Both sides use the same merged model with the same prompts, greedily, with the same batch size and constrained to the
same schemas. The rate is the number of rows over the time from the first row to the last answer, without loading the
model. `tooltune score` validates the answers of both. Rounds alternate; the table has medians.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
from pathlib import Path

from machine import ROOT, environment, mkl_note, mkl_preload, package_versions, run_process, say, versions
from page import Options, Page

DIR = Path("runs/bench-structure")
SAID = re.compile(r"(\d+) rows: (\d+) valid, (\d+) not valid.*; ([\d.]+) rows/s, ([\d.]+) tokens/s")
HEAD = [
    "| side | type | rows/s (minimum to maximum) | tokens/s | valid | same as tooltune's | peak RSS, MiB |",
    "|---|---|--:|--:|--:|--:|--:|",
]


class Bench:
    """Rows, the merged model, and the results of both sides."""

    def __init__(self, arguments):
        self.arguments = arguments
        (ROOT / DIR).mkdir(parents=True, exist_ok=True)
        self.preload = mkl_preload(ROOT / DIR)
        self.rows = DIR / "rows.jsonl"
        made = DIR / "slot.jsonl"
        synth = ["data", "synth", "slot", "--split", "test", "--rows", str(arguments.rows), "--output", str(made)]
        (ROOT / made).unlink(missing_ok=True)
        self.tooltune(synth, "synth.log")
        rows = [json.loads(line) for line in (ROOT / made).read_text(encoding="utf-8").splitlines()]
        asked = [{"id": i, "text": row["input_text"], "json_schema": row["json_schema"]} for i, row in enumerate(rows)]
        (ROOT / self.rows).write_text("".join(json.dumps(row) + "\n" for row in asked), encoding="utf-8")
        self.schemas = [row["json_schema"] for row in asked]
        self.merged = DIR / "merged"
        shutil.rmtree(ROOT / self.merged, ignore_errors=True)
        export = ["export", arguments.run, "--to", "merged", "--dtype", "f32", "--output", str(self.merged)]
        self.tooltune(export, "export.log")
        self.answers = {}

    def tooltune(self, words: list, log: str) -> int:
        return run_process([self.arguments.tooltune, *words], self.arguments.threads, "", ROOT / DIR / log)

    def ours(self, dtype: str) -> dict:
        arguments, output, log = self.arguments, DIR / f"ours-{dtype}.jsonl", f"ours-{dtype}.log"
        (ROOT / output).unlink(missing_ok=True)
        words = ["structure", str(self.merged), "--data", str(self.rows), "--output", str(output), "--threads", str(arguments.threads)]
        settings = {"eval.batch_size": arguments.batch, "eval.max_new_tokens": arguments.new_tokens, "model.compute_dtype": dtype}
        for name, value in settings.items():
            words += ["--set", f"{name}={value}"]
        rss = self.tooltune(words, log)
        said = SAID.search((ROOT / DIR / log).read_text(encoding="utf-8"))
        answers = [json.loads(line) for line in (ROOT / output).read_text(encoding="utf-8").splitlines()]
        values = [answer["json"] if answer["valid"] else None for answer in answers]
        return {"rows": float(said[4]), "tokens": float(said[5]), "values": values, "valid": int(said[2]), "rss": rss}

    def peer(self, dtype: str) -> dict:
        arguments, log = self.arguments, ROOT / DIR / f"peer-{dtype}.log"
        command = [arguments.python, "-W", "ignore", "scripts/bench/structure_peer.py", "--model", self.merged, "--rows", self.rows,
                   "--dtype", dtype, "--batch", str(arguments.batch), "--new-tokens", str(arguments.new_tokens),
                   "--threads", str(arguments.threads)]
        os.environ["PYTHONPATH"] = str(ROOT / arguments.packages)
        rss = run_process(command, arguments.threads, self.preload, log)
        said = json.loads(log.read_text(encoding="utf-8").splitlines()[-1])
        values = self.judged(said["texts"])
        n = len(said["texts"])
        valid = sum(is_valid for is_valid, _ in values)
        return {"rows": n / said["seconds"], "tokens": said["n_tokens"] / said["seconds"], "valid": valid, "rss": rss,
                "values": [value for _, value in values]}

    def judged(self, texts: list) -> list:
        """Whether each text is valid according to tooltune's validator, and its value."""
        lines = [{"id": i, "op": "slot.schema", "input": {"raw": text, "json_schema": schema}}
                 for i, (text, schema) in enumerate(zip(texts, self.schemas))]
        scored = subprocess.run([self.arguments.tooltune, "score"], cwd=ROOT, env=environment(self.arguments.threads, ""), text=True,
                                input="".join(json.dumps(line) + "\n" for line in lines), capture_output=True, check=True)
        valid = [json.loads(line)["value"] is True for line in scored.stdout.splitlines()]
        return [(is_valid, json.loads(text) if is_valid else None) for is_valid, text in zip(valid, texts)]

    def measured(self) -> list:
        lines = []
        for dtype in self.arguments.dtypes:
            runs = {"tooltune": [], "transformers, xgrammar": []}
            for number in range(self.arguments.rounds):
                say(f"{dtype}, round {number + 1}")
                runs["tooltune"].append(self.ours(dtype))
                runs["transformers, xgrammar"].append(self.peer(dtype))
            ours = runs["tooltune"][-1]["values"]
            for side, found in runs.items():
                rates = [run["rows"] for run in found]
                last = found[-1]
                same = sum(a is not None and a == b for a, b in zip(ours, last["values"]))
                cells = [side, dtype, f"{statistics.median(rates):.2f} ({min(rates):.2f} to {max(rates):.2f})",
                         f"{statistics.median(run['tokens'] for run in found):.0f}", f"{last['valid']} of {len(ours)}", str(same),
                         f"{max(run['rss'] for run in found) / (1 << 20):,.0f}"]
                lines.append("| " + " | ".join(cells) + " |")
        return lines


def main() -> None:
    options = Options(__doc__, wrapper=("--tooltune", "--python", "--packages"))
    options.add_argument("--run", default="runs/quickstart", help="a run on SLOT rows (default: the run of scripts/quickstart)")
    options.add_argument("--rows", type=int, default=200)
    options.add_argument("--batch", type=int, default=16, help="rows at a time (16)")
    options.add_argument("--new-tokens", type=int, default=512, help="maximum tokens per answer (512)")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--dtypes", nargs="+", default=["f32", "bf16"], choices=["f32", "bf16"])
    options.add_argument("--output", default="benchmarks/structure.md")
    arguments = options.parse_args()
    if not (ROOT / arguments.run).exists():
        options.error(f"{arguments.run} does not exist; run scripts/quickstart, or pass a run with --run")
    page = Page("structure", options.visible_arguments(), arguments.output)
    bench = Bench(arguments)
    lines = bench.measured()
    os.environ["PYTHONPATH"] = str(ROOT / arguments.packages)
    packages = f"{versions(arguments.python, 'torch transformers')}; {package_versions(arguments.python, 'xgrammar')}"
    page.write([
        *page.head("Texts to JSON compared with transformers", packages),
        f"- {mkl_note(bench.preload)}",
        f"- {arguments.rows} synthetic SLOT rows of families not used for training, the merged model of {arguments.run}, "
        f"{arguments.batch} rows at a time, at most {arguments.new_tokens} tokens per answer, {arguments.threads} threads, "
        f"{arguments.rounds} alternating rounds; medians",
        "",
        *HEAD,
        *lines,
        "",
        "Rates include schemas, prompts and decoding, with the model loaded. tooltune's validator decides for both sides whether an "
        "answer is valid.",
    ])


if __name__ == "__main__":
    main()
