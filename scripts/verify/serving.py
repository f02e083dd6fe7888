#!/usr/bin/env python3
"""Runs the blocks of docs/serving.md in a folder with the exports of a run, and generates answers to the same rows with each.

A block after the comment `<!-- file NAME -->` is written to that file; a block after `<!-- run NAME -->` is run unchanged. Python
blocks define `answer(text, schema)`. `base` and `base.gguf` are the run's base with f32 weights, so that servers compute the same
function as tooltune in f32; `llama-server` is llama.cpp's own server from the wheel xllamacpp. Answers are compared with the
completions of `tooltune generate`, and rendered prompts with the prompts in training. For vLLM, `tooltune verify` applies its rules.
ollama.py compares the tokens of Ollama's prompts with the tokens in training.
"""

import argparse
import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Replaces the directory of this file, whose modules would hide packages.
sys.path[0] = str(ROOT / "scripts")

from transformers.utils import logging

import hf_from_gguf
from dequantised_gguf import write_dequantised
from logits_file import read_prompts

PAGE = ROOT / "docs/serving.md"
BLOCK = re.compile(r"<!-- (file|run) ([\w.-]+) -->\n```(\w+)\n(.*?)```", re.DOTALL)
# Two tokens can be tied, and merged weights are rounded to 16 bits.
SAME_SHARE = 0.75
READY_SECONDS = 300


def blocks() -> dict:
    """Returns name of a block -> ("file" or "run", its text)."""
    found = {name: (kind, text) for kind, name, _, text in BLOCK.findall(PAGE.read_text(encoding="utf-8"))}
    expected = {"ask.py", "transformers", "peft", "llama-server", "client"}
    if set(found) != expected:
        raise SystemExit(f"{PAGE}: expected the blocks {sorted(expected)}, found {sorted(found)}")
    return found


def tooltune(arguments, *command) -> str:
    done = subprocess.run([str(arguments.tooltune), *map(str, command)], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"tooltune {shlex.join(map(str, command))}\nended with status {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def lay_out(arguments, folder: Path) -> list:
    """Writes the exports and the base, and returns the completions of `generate` with their rows."""
    run, checkpoint = arguments.run, ["--checkpoint", arguments.checkpoint]
    exports = (("merged", "my-model"), ("peft", "my-adapter"), ("gguf", "my-adapter.gguf"), ("ollama", "my-ollama"))
    for to, output in exports:
        tooltune(arguments, "export", run, *checkpoint, "--to", to, "--output", folder / output)
    print(tooltune(arguments, "verify", run, *checkpoint, "--rows", 2, "--against", "vllm-rules", "--export", folder / "my-adapter").strip())
    texts = folder / "texts.jsonl"
    f32 = ["--set", "model.compute_dtype=f32", "--set", "eval.max_new_tokens=256"]
    tooltune(arguments, "generate", run, *checkpoint, *f32, "--max-samples", arguments.rows, "--output", texts)
    hf_from_gguf.load_model(arguments.base).save_pretrained(folder / "base")
    hf_from_gguf.load_tokenizer(arguments.base).save_pretrained(folder / "base")
    write_dequantised(arguments.base, folder / "base.gguf", "f32")
    written = [json.loads(line) for line in texts.read_text(encoding="utf-8").splitlines()]
    for line in written:
        file, _, number = line["id"].rpartition(":")
        row = (ROOT / file).read_text(encoding="utf-8").splitlines()[int(number) - 1]
        line["row"] = json.loads(row)
        if "json_schema" not in line["row"]:
            raise SystemExit(f"{arguments.run}: data.eval has no SLOT rows, which the page needs")
    return written


def run_python(name: str, text: str) -> dict:
    """Executes a block of the page, and returns the names that it defines."""
    names = {"__name__": name}
    exec(compile(text, f"{PAGE.name}, {name}", "exec"), names)
    return names


@contextlib.contextmanager
def serving(arguments, command: str, folder: Path):
    """Runs the command of the page; `llama-server` starts llama.cpp's own server."""
    program = folder / "bin/llama-server"
    program.parent.mkdir()
    server = ROOT / "scripts/verify/llama_server.py"
    program.write_text(f"#!/bin/sh\nexec {shlex.quote(str(arguments.llama_cpp_python))} {shlex.quote(str(server))} \"$@\"\n")
    program.chmod(0o755)
    environment = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    log = folder / "server.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(["sh", "-c", "exec " + command.strip()], cwd=folder, env=environment, stdin=subprocess.PIPE,
                                   stdout=sink, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + READY_SECONDS
        while not is_ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the server does not respond:\n{log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        process.wait()


def is_ready() -> bool:
    try:
        with urllib.request.urlopen("http://127.0.0.1:8000/v1/models", timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def applied(messages: list) -> str:
    """Returns the prompt that llama.cpp renders from messages."""
    body = json.dumps({"messages": messages}).encode()
    request = urllib.request.Request("http://127.0.0.1:8000/apply-template", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["prompt"]


def compared(name: str, answer, written: list, wrong: list) -> None:
    """Generates an answer to every row, and prints how many equal the completions of `generate`."""
    n_same = 0
    for line in written:
        text = answer(line["row"]["input_text"], line["row"]["json_schema"])
        n_same += text == line["text"]
        if text != line["text"]:
            print(f"{line['id']}\n  generate  {line['text']}\n  {name}  {text}", file=sys.stderr)
    print(f"{name}: {n_same} of {len(written)} answers equal `tooltune generate`")
    if n_same < SAME_SHARE * len(written):
        wrong.append(f"the answers of {name} differ")


def check_ollama(arguments, folder: Path, messages, written: list, wrong: list) -> None:
    """Compares the tokens of prompts in Ollama and llama.cpp with the tokens in training."""
    logits = folder / "logits.safetensors"
    tooltune(arguments, "verify", arguments.run, "--checkpoint", arguments.checkpoint, "--rows", len(written), "--logits", logits)
    chats = []
    for line, (ids, _) in zip(written, read_prompts(logits), strict=True):
        asked = messages(line["row"]["input_text"], line["row"]["json_schema"], "my-ollama/prompt.jinja")
        chats.append({"messages": asked, "ids": ids.tolist()})
    (folder / "chats.json").write_text(json.dumps(chats))
    script = ROOT / "scripts/verify/ollama.py"
    command = [arguments.llama_cpp_python, "-W", "ignore", script, "--export", folder / "my-ollama", "--chats", folder / "chats.json"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    print(done.stdout.strip())
    if done.returncode != 0:
        wrong.append(f"the prompts of Ollama differ:\n{done.stderr[-4000:]}")


def checked(arguments, folder: Path) -> list:
    """Returns the errors as lines."""
    page, wrong = blocks(), []
    written = lay_out(arguments, folder)
    for name, (kind, text) in page.items():
        if kind == "file":
            (folder / name).write_text(text, encoding="utf-8")
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    for name in ("transformers", "peft"):
        names = run_python(name, page[name][1])
        folder_of = {"transformers": "my-model", "peft": "my-adapter"}[name]
        for line in written:
            row = line["row"]
            asked = names["messages"](row["input_text"], row["json_schema"], f"{folder_of}/prompt.jinja")
            prompt = names["tokenizer"].apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
            if prompt != line["prompt"]:
                wrong.append(f"{line['id']}: the prompt in {name} is {prompt!r}, expected {line['prompt']!r} as in training")
        compared(name, names["answer"], written, wrong)
    with serving(arguments, page["llama-server"][1], folder):
        for line in written:
            row = line["row"]
            prompt = applied(names["messages"](row["input_text"], row["json_schema"], "my-adapter.prompt.jinja"))
            if prompt != line["prompt"]:
                wrong.append(f"{line['id']}: the prompt in llama.cpp is {prompt!r}, expected {line['prompt']!r} as in training")
        compared("llama.cpp", run_python("client", page["client"][1])["answer"], written, wrong)
    check_ollama(arguments, folder, names["messages"], written, wrong)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run directory whose data.eval has SLOT rows")
    parser.add_argument("--checkpoint", default="best", help="best, last, or a checkpoint directory")
    parser.add_argument("--base", type=Path, default=Path("models/smollm2-135m-instruct.gguf"), help="the run's base, a GGUF file")
    parser.add_argument("--rows", type=int, default=4, help="number of rows (4)")
    parser.add_argument("--llama-cpp-python", type=Path, required=True, help=argparse.SUPPRESS)
    default = Path(os.environ.get("CARGO_TARGET_DIR", "target")) / "release/tooltune"
    parser.add_argument("--tooltune", type=Path, default=default, help=f"the program ({default})")
    arguments = parser.parse_args()
    for path in (arguments.run / "config.resolved.toml", arguments.base, arguments.tooltune):
        if not path.is_file():
            raise SystemExit(f"{path}: no such file")
    for name in ("run", "base", "tooltune"):
        setattr(arguments, name, getattr(arguments, name).absolute())
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as name:
        wrong = checked(arguments, Path(name))
        os.chdir(ROOT)
    for line in wrong:
        print(line, file=sys.stderr)
    print("verify/serving: " + ("answers differ" if wrong else "all blocks of docs/serving.md work"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
