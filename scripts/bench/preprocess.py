#!/usr/bin/env python3
"""Preprocesses the same rows with tooltune and with TRL and writes benchmarks/preprocess.md; started by scripts/bench/preprocess.

Rows are prompts and completions of synthetic SLOT rows, in one Parquet file per size. Both sides read the file, render
the model's chat template, tokenize, mask the prompt, and store the result on disk. Times are of the whole process:
tooltune plans one step of a run, TRL creates its trainer with a tiny model. The time for a single row is measured first
and subtracted. Sides alternate; the table has medians.
"""

import json
import os
import shutil
import statistics
import time
from pathlib import Path

from machine import ROOT, package_versions, run_process, say, versions
from page import Options, Page

DIR = Path("runs/bench-preprocess")
MODEL = "models/smollm2-135m-instruct.gguf"


class Bench:
    """Files of rows, and the results of both sides."""

    def __init__(self, arguments):
        self.arguments = arguments
        shutil.rmtree(ROOT / DIR, ignore_errors=True)
        (ROOT / DIR).mkdir(parents=True)
        os.environ["TOOLTUNE_CACHE"] = str(ROOT / DIR / "cache")
        base = ["data", "synth", "slot", "--split", "train", "--rows", str(arguments.distinct), "--output", str(DIR / "slot.jsonl")]
        self.tooltune(base, "synth.log")
        rows = [json.loads(line) for line in (ROOT / DIR / "slot.jsonl").read_text(encoding="utf-8").splitlines()]
        self.rows = [self.chat(row) for row in rows]

    @staticmethod
    def chat(row: dict) -> tuple:
        asked = f"{row['input_text']}\n\nSchema: {json.dumps(row['json_schema'])}"
        return asked, json.dumps(row["gold"], ensure_ascii=False)

    def file(self, n: int, short: bool = False) -> Path:
        """A Parquet file with this number of distinct rows: each starts with its index."""
        name = f"{n}-short" if short else str(n)
        path, lines = DIR / f"{name}.parquet", DIR / f"{name}.jsonl"
        if not (ROOT / path).exists():
            with (ROOT / lines).open("w", encoding="utf-8") as out:
                for i in range(n):
                    asked, answer = self.rows[i % len(self.rows)]
                    if short:
                        asked, answer = asked[:40], answer[:20]
                    prompt = [{"role": "user", "content": f"{i}. {asked}"}]
                    row = {"prompt": prompt, "completion": [{"role": "assistant", "content": answer}]}
                    out.write(json.dumps(row, ensure_ascii=False) + "\n")
            self.tooltune(["data", "convert", str(lines), "--output", str(path)], "convert.log")
            (ROOT / lines).unlink()
        return path

    def tooltune(self, words: list, log: str) -> tuple:
        begun = time.perf_counter()
        rss = run_process([self.arguments.tooltune, *words], self.arguments.threads, "", ROOT / DIR / log)
        return time.perf_counter() - begun, rss

    def ours(self, n: int, is_first: bool, short: bool = False) -> tuple:
        if is_first:
            shutil.rmtree(ROOT / DIR / "cache", ignore_errors=True)
        path = self.file(n, short)
        config = ROOT / DIR / "config.toml"
        config.write_text(
            f'[model]\nmodel_name_or_path = "{MODEL}"\n[lora]\nr = 8\n[data]\ntrain = ["{path}"]\nmax_length = 2048\n'
            f'[train]\noutput_dir = "{DIR}/run"\nmax_steps = 1\nper_device_train_batch_size = 1\n[eval]\neval_strategy = "no"\n',
            encoding="utf-8",
        )
        words = ["plan", str(DIR / "config.toml"), "--format", "json", "--threads", str(self.arguments.threads)]
        seconds, rss = self.tooltune(words, "ours.log")
        log = (ROOT / DIR / "ours.log").read_text(encoding="utf-8")
        said = json.loads(log[log.index("{"):])
        if said["examples"] != n:
            raise SystemExit(f"tooltune produced {said['examples']} examples from {n} rows")
        return seconds, rss

    def peer(self, n: int) -> tuple:
        path, log = self.file(n), ROOT / DIR / "peer.log"
        cache = ROOT / DIR / "hf"
        shutil.rmtree(cache, ignore_errors=True)
        command = [self.arguments.python, "-W", "ignore", "scripts/bench/preprocess_peer.py", "--model", MODEL, "--rows", str(path),
                   "--cache", str(cache), "--processes", str(self.arguments.threads)]
        os.environ["PYTHONPATH"] = str(ROOT / self.arguments.packages)
        begun = time.perf_counter()
        run_process(command, self.arguments.threads, "", log)
        seconds = time.perf_counter() - begun
        said = json.loads(log.read_text(encoding="utf-8").splitlines()[-1])
        if said["examples"] != n:
            raise SystemExit(f"TRL produced {said['examples']} examples from {n} rows")
        return seconds, said["rss"]

    def cell(self, side: str, n: int, runs: list, of_one: float, short: bool = False) -> str:
        seconds = statistics.median(seconds for seconds, _ in runs)
        rss = max(rss for _, rss in runs) / (1 << 20)
        rate = n / max(seconds - of_one, 1e-9)
        rows = f"{n:,} short" if short else f"{n:,}"
        return f"| {side} | {rows} | {seconds:.1f} | {rate:,.0f} | {rss:,.0f} |"

    def measured(self) -> list:
        arguments = self.arguments
        say("one row")
        ours_of_one = min(self.ours(1, True)[0] for _ in range(2))
        lines = []
        n = arguments.rows
        peer_of_one = self.peer(1)[0]
        ours, again, peer = [], [], []
        for number in range(arguments.rounds):
            say(f"{n} rows, round {number + 1}")
            ours.append(self.ours(n, True))
            again.append(self.ours(n, False))
            peer.append(self.peer(n))
        lines += [
            self.cell("tooltune", n, ours, ours_of_one),
            self.cell("datasets, TRL", n, peer, peer_of_one),
            self.cell("tooltune, second start", n, again, 0.0),
        ]
        sizes = [(size, False) for size in arguments.sizes] + [(size, True) for size in arguments.short]
        for size, short in sizes:
            say(f"{size} rows")
            lines.append(self.cell("tooltune", size, [self.ours(size, True, short)], ours_of_one, short))
            lines.append(self.cell("tooltune, second start", size, [self.ours(size, False, short)], 0.0, short))
            self.file(size, short).unlink()
        lines += ["", f"One row takes tooltune {ours_of_one:.1f} s and TRL {peer_of_one:.1f} s."]
        return lines


def main() -> None:
    options = Options(__doc__, wrapper=("--tooltune", "--python", "--packages"))
    options.add_argument("--rows", type=int, default=100_000, help="rows that both sides prepare (100000)")
    options.add_argument("--sizes", type=int, nargs="*", default=[10_000, 1_000_000], help="further sizes for tooltune only")
    options.add_argument("--short", type=int, nargs="*", default=[10_000_000], help="further sizes for tooltune only, with texts cut to about 60 characters")
    options.add_argument("--distinct", type=int, default=5_000, help="distinct texts that rows are built from (5000)")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--output", default="benchmarks/preprocess.md")
    arguments = options.parse_args()
    page = Page("preprocess", options.visible_arguments(), arguments.output)
    bench = Bench(arguments)
    lines = bench.measured()
    os.environ["PYTHONPATH"] = str(ROOT / arguments.packages)
    packages = f"{versions(arguments.python, 'torch transformers')}; {package_versions(arguments.python, 'datasets trl pyarrow')}"
    page.write([
        *page.head("Preparing rows compared with TRL", packages),
        f"- prompts and completions of {arguments.distinct:,} synthetic SLOT rows, each row prefixed with its index, in one Parquet "
        f"file; the tokenizer and template of {MODEL}, {arguments.threads} threads or processes, {arguments.rounds} alternating rounds; "
        "medians",
        "",
        "| side | rows | s | rows/s, without the time of one row | peak RSS, MiB |",
        "|---|--:|--:|--:|--:|",
        *lines,
        "",
        "Times are for the whole process. tooltune writes examples to its cache while it makes them, and plans one step; a second "
        "start reads them from there. Short rows are the same rows, cut to 40 and 20 characters. TRL's processes write Arrow files; its RSS is their sum.",
    ])


if __name__ == "__main__":
    main()
