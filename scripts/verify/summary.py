#!/usr/bin/env python3
"""Turns the output of scripts/verify/all into a table of exports and programs, and writes it into benchmarks/verification.md.

    scripts/verify/summary.py RUN CHECKPOINT BASE OUTPUT
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT / "scripts")

from verification_section import record

NUMBER = r"(-?\d[\d.]*(?:e[-+]?\d+)?)"
# (export, program, pattern of its output with the largest difference and its limit)
LOGITS = [
    ("PEFT folder", "PEFT's rules", rf"^peft matches \S+: .*?logit difference {NUMBER} \(bound {NUMBER},"),
    ("PEFT folder, `--neutral`", "vLLM's rules", rf"^neutral, read by vllm-rules\n.*?logit difference {NUMBER} \(bound {NUMBER},"),
    ("PEFT folder", "peft", rf"^Adapter `peft`[\s\S]*?peft in f64 is {NUMBER}, the limit {NUMBER}\."),
    ("PEFT folder, `--neutral`", "peft", rf"^Adapter `neutral`[\s\S]*?peft in f64 is {NUMBER}, the limit {NUMBER}\."),
    ("GGUF adapter", "llama.cpp", rf"^llama\.cpp agrees .*?of a logit is {NUMBER}, the limit {NUMBER}\."),
    ("whole GGUF model, f32", "llama.cpp", rf"^whole\.gguf: the largest difference of a logit is {NUMBER}, the limit {NUMBER},"),
    ("merged folder", "transformers", rf"^merged \(\S+\) agrees .*?of a logit {NUMBER} \(bound {NUMBER},"),
    ("merged folder of the GGUF base", "transformers", rf"^merged-of-gguf \(\S+\) agrees .*?of a logit {NUMBER} \(bound {NUMBER},"),
]
# (export, program, pattern of its output with the number of equal completions and of all completions)
TEXTS = [
    ("PEFT folder", "peft", r"^Adapter `peft`[\s\S]*?(\d+) of (\d+) texts are the same"),
    ("whole GGUF model, f32", "llama.cpp", r"^whole\.gguf: of (?=(\d+) texts (\d+) are)\d+ texts"),
    ("GGUF adapter", "llama.cpp's server, `tooltune eval --endpoint`", r"^\| llama\.cpp \| (\d+) of (\d+) \|"),
    ("merged folder", "transformers, as docs/serving.md shows", r"^transformers: (\d+) of (\d+) answers"),
    ("PEFT folder", "peft, as docs/serving.md shows", r"^peft: (\d+) of (\d+) answers"),
    ("GGUF adapter", "llama.cpp's server, as docs/serving.md shows", r"^llama\.cpp: (\d+) of (\d+) answers"),
]
VERSION = re.compile(r"\b(torch|transformers|peft|tokenizers|xllamacpp|llama-cpp-python) (\d[\w.]*)")


def main() -> int:
    run, checkpoint, base, output = sys.argv[1:]
    printed = Path(output).read_text(encoding="utf-8")
    for place in (str(Path(output).parent), str(ROOT)):
        printed = printed.replace(f"{place}/", "")
    # Remove the temporary folders of the other scripts.
    printed = re.sub(r"/\S*/tmp\w+/", "", printed).replace("== ", "")
    cells = {}
    for export, program, pattern in LOGITS:
        if found := re.search(pattern, printed, re.MULTILINE):
            cells[export, program] = [f"{float(found[1]):.1e}", f"{float(found[2]):.1e}", ""]
    for export, program, pattern in TEXTS:
        if found := re.search(pattern, printed, re.MULTILINE):
            n_same, n_all = sorted(map(int, found.groups()))
            cells.setdefault((export, program), ["", "", ""])[2] = f"{n_same} of {n_all}"
    if not cells:
        raise SystemExit(f"{output}: no result of scripts/verify/all found; give its complete output")
    rows = ["| export | loaded by | largest difference of a logit | limit | same texts |", "|---|---|---|---|---|"]
    rows += [f"| {export} | {program} | {' | '.join(values)} |" for (export, program), values in cells.items()]
    if re.search(r"^merged \(BF16\)", printed, re.MULTILINE):
        rows += ["", "The merged folder is rounded to bf16, the default for a GGUF base."]
    versions = ", ".join(f"{name} {version}" for name, version in sorted(set(VERSION.findall(printed))))
    day = re.search(r"^Adapter `peft` .*(\d{4}-\d\d-\d\d)\.$", printed, re.MULTILINE)[1]
    kind = "a folder" if (ROOT / base).is_dir() else "a GGUF file"
    text = f"Checkpoint {checkpoint}, trained from `{base}`; {day}, {versions}.\n\n" + "\n".join(rows)
    record(ROOT / "benchmarks/verification.md", f"scripts/verify/all {run}", f"Every export of `{run}`, from {kind}", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
