#!/usr/bin/env python3
"""Runs `tooltune eval --suite slot --endpoint` on real servers, and compares the completions with tooltune's own.

The servers are llama.cpp's own and llama-cpp-python's. Each loads the base as a GGUF file in f32 and the exported adapter, and has
an f32 cache, so it computes the same function as tooltune in f32 (scripts/verify/llama-cpp compares the logits). Every row must
have an answer. Greedy completions of llama.cpp's server must equal tooltune's, which also shows that both render the same prompt.
For llama-cpp-python, equal completions are only counted: by default it penalises repeated tokens (`repeat_penalty` 1.1), and no
field of the protocol turns this off. With `eval.constrained`, the schema is sent as `response_format`, and every completion must be
valid under its schema by Python's jsonschema. These completions may differ from tooltune's, because each server has its own rules
for the order of keys. `--record` writes the result into a Markdown file.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Replaces the directory of this file, whose modules would hide packages.
sys.path[0] = str(ROOT / "scripts")

import jsonschema

from dequantised_gguf import write_dequantised
from verification_section import record

NAME = "tuned"
OWN, PYTHON = "llama.cpp", "llama-cpp-python"
# Two tokens can be tied; completions differ if the servers choose different ones.
SAME_SHARE = 0.75
READY_SECONDS = 300
PACKAGES = {OWN: "xllamacpp", PYTHON: "llama-cpp-python"}


def commands(base: Path, adapter: Path, port: int, threads: int) -> dict:
    """Returns the command that starts each server."""
    own = [ROOT / "scripts/verify/llama_server.py", "--model", base, "--lora", adapter, "--jinja", "--alias", NAME, "--port", port]
    own += ["--threads", threads]
    python = ["-m", "llama_cpp.server", "--model", base, "--lora_path", adapter, "--model_alias", NAME, "--port", port]
    python += ["--host", "127.0.0.1", "--n_ctx", 4096, "--type_k", 0, "--type_v", 0, "--logits_all", "false"]
    python += ["--n_threads", threads, "--n_threads_batch", threads]
    return {
        OWN: [sys.executable, *map(str, own)],
        PYTHON: [sys.executable, *map(str, python)],
    }


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextmanager
def serving(command: list, port: int, log: Path):
    """Starts the server and yields its base URL once it responds; ends the server after the block."""
    with log.open("wb") as sink:
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=sink, stderr=subprocess.STDOUT)
    try:
        url = f"http://127.0.0.1:{port}/v1"
        deadline = time.monotonic() + READY_SECONDS
        while not is_ready(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the server does not respond:\n{log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait()


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/models", timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def first_rows(run: Path, n: int) -> list:
    """Returns the first `n` rows of the run's data.eval, as lines."""
    with (run / "config.resolved.toml").open("rb") as file:
        files = tomllib.load(file)["data"]["eval"]
    lines = [line for name in files for line in (ROOT / name).read_text(encoding="utf-8").splitlines() if line.strip()]
    if not lines or "json_schema" not in json.loads(lines[0]):
        raise SystemExit(f"{run}: data.eval has no SLOT rows; use a run on SLOT rows")
    return lines[:n]


class Failed(Exception):
    """An evaluation that ended with an error."""


def evaluated(arguments, output: Path, *more: str) -> list:
    """Returns the predictions of an evaluation; raises `Failed` with its standard error."""
    command = [arguments.tooltune, "eval", arguments.run, "--suite", "slot", "--data", arguments.data, "--output", output]
    command += ["--set", "model.compute_dtype=f32", *more]
    done = subprocess.run([str(part) for part in command], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, command))}\nended with status {done.returncode}:\n{done.stderr[-2000:]}")
    return [json.loads(line) for line in (output / "predictions.jsonl").read_text(encoding="utf-8").splitlines()]


def is_valid(text: str, schema: dict) -> bool:
    try:
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def n_same(ours: list, theirs: list) -> int:
    return sum(a["prediction"] == b["prediction"] for a, b in zip(ours, theirs))


def asked(arguments, name: str, command: list, port: int, folder: Path, ours: dict, schemas: list) -> dict:
    """Counts one server's completions by kind, and returns the errors as lines."""
    found, wrong = {}, []
    with serving(command, port, folder / "server.log") as url:
        for way, settings in (("plain", []), ("constrained", ["--set", "eval.constrained=true"])):
            where = ["--endpoint", url, "--endpoint-model", NAME, "--concurrency", "2"]
            try:
                texts = evaluated(arguments, folder / way, *where, *settings)
            except Failed as failure:
                wrong.append(f"{way}: {failure}")
                continue
            if [row["id"] for row in texts] != [row["id"] for row in ours[way]]:
                wrong.append(f"{way}: not every row has an answer")
            found[way] = {
                "same": n_same(ours[way], texts),
                "valid": sum(is_valid(row["prediction"], schema) for row, schema in zip(texts, schemas)),
                "cut": sum(row["finish_reason"] == "length" for row in texts),
            }
            for row, schema in zip(texts, schemas):
                # tooltune scores a completion that is cut at the token limit as not parsed, even if its JSON is complete.
                is_cut = row["finish_reason"] == "length"
                if not is_cut and is_valid(row["prediction"], schema) != row["score"]["schema"]:
                    wrong.append(f"{way}: {row['id']}: tooltune and jsonschema disagree on {row['prediction']!r}")
                if way == "constrained" and not is_cut and not is_valid(row["prediction"], schema):
                    wrong.append(f"{row['id']} violates its schema: {row['prediction']!r}")
            for mine, row in zip(ours[way], texts):
                if (name, way) == (OWN, "plain") and mine["prediction"] != row["prediction"]:
                    print(f"{row['id']}\n  here    {mine['prediction']}\n  served  {row['prediction']}", file=sys.stderr)
    n_plain = found["plain"]["same"] if "plain" in found else 0
    if name == OWN and n_plain < SAME_SHARE * len(schemas):
        wrong.append(f"only {n_plain} of {len(schemas)} greedy completions equal tooltune's")
    return {"found": found, "wrong": wrong}


def compare(arguments, schemas: list, folder: Path) -> tuple:
    """(tooltune's own completions by setting, results by server)"""
    base, adapter = folder / "f32.gguf", folder / "adapter.gguf"
    write_dequantised(arguments.base, base, "f32")
    export = [arguments.tooltune, "export", arguments.run, "--to", "gguf", "--output", adapter, "--checkpoint", arguments.checkpoint]
    subprocess.run([str(part) for part in export], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    checkpoint = ["--checkpoint", arguments.checkpoint]
    ours = {
        "base": evaluated(arguments, folder / "base", "--checkpoint", "base"),
        "plain": evaluated(arguments, folder / "plain", *checkpoint),
        "constrained": evaluated(arguments, folder / "constrained", *checkpoint, "--set", "eval.constrained=true"),
    }
    found = {}
    port = free_port()
    for name, command in commands(base, adapter, port, arguments.threads).items():
        if name not in arguments.servers:
            continue
        of_server = folder / name
        of_server.mkdir()
        found[name] = asked(arguments, name, command, port, of_server, ours, schemas)
    return ours, found


def report(arguments, ours: dict, found: dict, n: int) -> str:
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in (*map(PACKAGES.get, found), "jsonschema"))
    lines = [
        f"Run `{arguments.run}`, checkpoint {arguments.checkpoint}, {n} rows, {datetime.date.today().isoformat()}; {versions}.",
        "",
        "| server | texts at temperature 0 as here | valid | valid with `response_format` | the same as constrained here |",
        "|---|---|---|---|---|",
    ]
    for name, server in found.items():
        plain, constrained = (server["found"].get(way) for way in ("plain", "constrained"))
        cells = [plain and plain["same"], plain and plain["valid"], constrained and constrained["valid"], constrained and constrained["same"]]
        shown = ["no answer" if cell is None else f"{cell} of {n}" for cell in cells]
        lines.append(f"| {name} | {' | '.join(shown)} |")
    n_base = n_same(ours["base"], ours["plain"])
    cut = sum(way["cut"] for server in found.values() for way in server["found"].values())
    lines += [
        "",
        f"{cut} texts of servers were cut at the token limit.",
        f"Without the adapter, {n - n_base} of {n} greedy texts differ.",
        "With a schema, the server writes required keys before optional ones.",
    ]
    if PYTHON in found:
        lines.append(
            "llama-cpp-python's server penalises repeated tokens (`repeat_penalty` 1.1) unless a request sets another value, so its "
            "completions at temperature 0 are not the likeliest ones."
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run directory whose data.eval has SLOT rows")
    parser.add_argument("--checkpoint", default="best", help="best, last, or a checkpoint directory")
    parser.add_argument("--base", type=Path, default=Path("models/smollm2-135m-instruct.gguf"), help="the run's base, a GGUF file")
    parser.add_argument("--rows", type=int, default=8, help="number of rows (8)")
    parser.add_argument("--servers", nargs="+", choices=[OWN, PYTHON], default=[OWN, PYTHON], help="servers to test (both)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of a server")
    default = Path(os.environ.get("CARGO_TARGET_DIR", "target")) / "release/tooltune"
    parser.add_argument("--tooltune", type=Path, default=default, help=f"the program ({default})")
    parser.add_argument("--record", type=Path, help="Markdown file in which the section is replaced")
    arguments = parser.parse_args()
    for path in (arguments.run / "config.resolved.toml", arguments.base, arguments.tooltune):
        if not path.is_file():
            raise SystemExit(f"{path}: no such file")
    lines = first_rows(arguments.run, arguments.rows)
    schemas = [json.loads(line)["json_schema"] for line in lines]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        arguments.data = folder / "rows.jsonl"
        arguments.data.write_text("\n".join(lines) + "\n", encoding="utf-8")
        ours, found = compare(arguments, schemas, folder)
    text = report(arguments, ours, found, len(schemas))
    print(text)
    wrong = [f"{name}: {line}" for name, server in found.items() for line in server["wrong"]]
    if n_same(ours["base"], ours["plain"]) == len(schemas):
        wrong.append("without the adapter all completions are the same, which proves little; train longer, or use more --rows")
    for line in wrong:
        print(line, file=sys.stderr)
    if arguments.record and not wrong:
        record(arguments.record, "scripts/verify/endpoint", "Completions of servers", text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
