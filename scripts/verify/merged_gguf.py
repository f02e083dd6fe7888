#!/usr/bin/env python3
"""Has llama.cpp go on with prompts greedily, by a merged GGUF model, and compares its texts with those tooltune generated.

Model and cache are in f32, and prompts are texts, so that llama.cpp's own tokenizer reads them. A text may differ only from a token
on whose logit leads the second best one by less than what two f32 implementations differ by: such a token is a tie.
"""

import argparse
import json
import sys
from contextlib import closing
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# In place of the directory of this file, whose name would hide the package of that name.
sys.path[0] = str(ROOT / "scripts")

from llama_cpp_greedy import same_text
from llama_cpp_model import EXACT, LlamaCppModel, versions


def read_texts(path: Path) -> list:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if not rows:
        raise SystemExit(f"{path}: has no texts; generate some")
    if any(row.get("finish_reason") not in ("stop", "length") for row in rows):
        raise SystemExit(f"{path}: a text neither ended by itself nor at the limit of tokens; generate greedily")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="what `tooltune export RUN --to gguf --merged --dtype f32` wrote")
    parser.add_argument("texts", type=Path, help="what `tooltune generate RUN --output FILE` wrote, in f32 and greedily")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    for path in (arguments.model, arguments.texts):
        if not path.is_file():
            raise SystemExit(f"{path}: no such file")
    rows = read_texts(arguments.texts)
    n_ctx = max(row["n_prompt_tokens"] + row["n_tokens"] for row in rows) + 8
    counts = {"same": 0, "tie": 0, "other": 0}
    n_wrong = 0
    with closing(LlamaCppModel(arguments.model, n_ctx=n_ctx, threads=arguments.threads, context=EXACT)) as model:
        for row in rows:
            ids = model.ids(row["prompt"].encode())
            if len(ids) != row["n_prompt_tokens"]:
                print(f"{row['id']}: llama.cpp reads the prompt as {len(ids)} tokens, we as {row['n_prompt_tokens']}", file=sys.stderr)
                n_wrong += 1
                continue
            model.clear()
            logits = model.logits([(token, position, 0, position == len(ids) - 1) for position, token in enumerate(ids)])[-1].copy()
            verdict, text = same_text(model, logits, len(ids), row)
            counts[verdict] += 1
            if verdict == "other":
                print(f"{row['id']}: llama.cpp writes {text!r}, we {row['text']!r}", file=sys.stderr)
                n_wrong += 1
    print(f"{versions()}")
    print(f"{arguments.model}: of {len(rows)} texts {counts['same']} are the same, {counts['tie']} differ after a tie, {n_wrong} are wrong")
    return 1 if n_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
