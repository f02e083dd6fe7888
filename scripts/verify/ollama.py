#!/usr/bin/env python3
"""Compares the tokens of chat prompts in Ollama and llama.cpp with the tokens in training.

The script parses a `Modelfile` as Ollama does, renders its TEMPLATE with Go's text/template (ollama_prompts.go), and tokenizes the
prompt with the exported model in llama.cpp's own server. Without --export, it creates tiny models, trains them for one step and
exports them, each from a folder and from a GGUF file. The models differ in their templates (the begin-of-text token is written,
omitted, or opens each turn; text is stripped; the system message is part of the first turn), in whether the tokenizer adds the
begin-of-text token, and in their stop tokens (one to three, one of which ends no turn). The tokens in training come from `tooltune
verify --logits`.
"""

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unicodedata
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Replaces the directory of this file, whose modules would hide packages.
sys.path[0] = str(ROOT / "scripts")

import xllamacpp

from logits_file import read_prompts
from verification_section import record

FIXTURE = ROOT / "tests/fixtures/tiny_chat_model"
READY_SECONDS = 120
TURN = "{% if bos_first and loop.first %}{{ bos_token }}{% endif %}<|im_start|>{{ m.role }}\n{{ TEXT }}<|im_end|>\n"
PLAIN = "{% for m in messages %}TURN{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
JOINED = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content + '\n\n' %}{% set rest = messages[1:] %}{% else %}"
    "{% set system = '' %}{% set rest = messages %}{% endif %}{{ bos_token }}{% for m in rest %}<|im_start|>{{ m.role }}\n"
    "{{ system if loop.first else '' }}{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def turns(bos_first: bool = False, text: str = "m.content") -> str:
    turn = TURN.replace("bos_first", "true" if bos_first else "false").replace("TEXT", text)
    return PLAIN.replace("TURN", turn)


# Name, chat template, begin-of-text token, whether the tokenizer adds it, stop tokens, end-of-text token, data.system.
CASES = [
    ("no-bos", turns(), "<|endoftext|>", False, [2], "<|im_end|>", None),
    ("no-bos-but-added", turns(), "<|endoftext|>", True, [2, 0], "<|im_end|>", None),
    ("bos", turns(True), "<|endoftext|>", False, [2], "<|im_end|>", None),
    ("bos-and-added", turns(True), "<|endoftext|>", True, [2, 0, 1022], "<|im_end|>", "Say \"yes\""),
    ("bos-opens-turns", turns(), "<|im_start|>", False, [2], "<|im_end|>", "Answer.\n\n\"\"\"Be brief\"\"\""),
    ("bos-opens-turns-and-added", turns(), "<|im_start|>", True, [2], "<|im_end|>", None),
    ("stripped", turns(True, "m.content | trim"), "<|endoftext|>", True, [2], "<|im_end|>", "  One\u00a0two \\n\"\"\"\nthree  "),
    ("system-in-first-turn", JOINED, "<|endoftext|>", True, [2], "<|im_end|>", "Line\n\"quoted\""),
    ("eos-ends-no-turn", turns(True), "<|endoftext|>", False, [2, 1022], "<|endoftext|>", ""),
]
# Characters that `trim` in llama.cpp's templates removes; Python's `trim` removes all Unicode white space.
ASCII_SPACE = " \t\n\r\v\f"
CHATS = [
    [("user", "When is the meeting?"), ("assistant", "On Monday.")],
    [("system", "Be brief."), ("user", " \n\t When? \u3000\r\n"), ("assistant", "  Now. \n"), ("user", "Where?"), ("assistant", "Here.")],
    [("user", " \n\t When? \r\n"), ("assistant", "\tNow.\n")],
    [("user", "\"quoted\" '''x''' \\n {{ .Content }}"), ("assistant", "<b>&amp;</b>"), ("user", "Grüße, 東京 🙂"), ("assistant", "Ja.")],
]


def write_model(folder: Path, case: tuple) -> None:
    """Writes the tiny chat model with the template, special tokens and stop tokens of a case."""
    _, template, bos, is_added, stops, eos, _ = case
    shutil.copytree(FIXTURE, folder)
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": stops}))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings |= {"bos_token": bos, "eos_token": eos}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    by_id = {id: token for token, id in vocabulary.items()}
    for id, name in ((1022, "[FIN]"), (1023, "[OVER]")):
        merged = by_id[id]
        del vocabulary[merged]
        tokenizer["model"]["merges"] = [pair for pair in tokenizer["model"]["merges"] if "".join(pair) != merged]
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        tokenizer["added_tokens"].append({"id": id, "content": name, **flags, "special": True})
    if is_added:
        ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
        special, sequence = {"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
        tokenizer["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [special, sequence],
            "pair": [sequence, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {bos: {"id": bos, "ids": [ids[bos]], "tokens": [bos]}},
        }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def tooltune(arguments, folder: Path, *command) -> str:
    done = subprocess.run([str(arguments.tooltune), *map(str, command)], cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"tooltune {' '.join(map(str, command))}\nended with status {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout + done.stderr


def is_printed(character: str) -> bool:
    return character == " " or unicodedata.category(character)[0] in "LMNPS"


def unquoted(text: str):
    """Returns the text between the quotes, or None if they are not closed."""
    for quotes in ('"""', '"'):
        if text.startswith(quotes):
            is_closed = len(text) >= 2 * len(quotes) and text.endswith(quotes)
            return text[len(quotes) : len(text) - len(quotes)] if is_closed else None
    return text


def commands(path: Path) -> list:
    """Parses a Modelfile into [(command, text)]. Like Ollama, it drops characters that Go does not print."""
    rest, found = path.read_bytes().decode(), []
    while rest := rest.lstrip("\r\n"):
        name, rest = rest.split(" ", 1)
        if name == "PARAMETER":
            name, rest = rest.split(" ", 1)
        text, end = "", len(rest)
        for at, character in enumerate(rest):
            if character in "\r\n" and unquoted(text.strip()) is not None:
                end = at
                break
            if character in "\t\r\n" or is_printed(character):
                text += character
        value = unquoted(text.strip())
        if value is None:
            raise SystemExit(f"{path}: {name} has no end")
        found.append((name, value))
        rest = rest[end:]
    return found


def prompts_of(modelfile: list, chats: list) -> list:
    texts = dict(modelfile)
    if "TEMPLATE" not in texts:
        raise SystemExit("the Modelfile has no TEMPLATE, so Ollama uses the chat template of the model file")
    asked = {"template": texts["TEMPLATE"], "system": texts.get("SYSTEM", ""), "chats": [chat["messages"] for chat in chats]}
    program = ["go", "run", str(ROOT / "scripts/verify/ollama_prompts.go")]
    done = subprocess.run(program, input=json.dumps(asked), capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(program)}: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


@contextlib.contextmanager
def serving(model: Path):
    """Runs llama.cpp's own server with a model, and yields its address."""
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.use_jinja, params.verbosity = True, 0
    params.n_ctx, params.n_parallel, params.port = 2048, 1, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 2
    server = xllamacpp.Server(params)
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(f"{server.listening_address}/v1/models", timeout=5).close()
            break
        time.sleep(0.1)
    yield server.listening_address
    del server


def posted(address: str, path: str, body: dict) -> dict:
    request = urllib.request.Request(address + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


def is_trimmed_alike(messages: list) -> bool:
    """Whether llama.cpp's `trim` and Python's give the same result for each message."""
    return all(message["content"].strip() == message["content"].strip(ASCII_SPACE) for message in messages)


def checked(export: Path, chats: list) -> list:
    """Returns the differences as lines, for Ollama's prompts and for llama.cpp's own chat template."""
    modelfile = commands(export / "Modelfile")
    wrong = []
    with serving(export / "model.gguf") as address:
        for chat, prompt in zip(chats, prompts_of(modelfile, chats)):
            body = {"content": prompt, "add_special": True, "parse_special": True}
            ids = posted(address, "/tokenize", body)["tokens"]
            if ids != chat["ids"]:
                wrong.append(f"{export}: Ollama's prompt has the tokens {ids} ({prompt!r}), expected {chat['ids']} as in training")
            body = {"messages": chat["messages"], "max_tokens": 1, "temperature": 0}
            n_tokens = posted(address, "/v1/chat/completions", body)["usage"]["prompt_tokens"]
            if n_tokens != len(chat["ids"]) and not is_trimmed_alike(chat["messages"]):
                print(f"{export.name}: llama.cpp's trim leaves white space outside ASCII in a chat: {n_tokens} tokens, {len(chat['ids'])} in training")
            elif n_tokens != len(chat["ids"]):
                wrong.append(f"{export}: llama.cpp's prompt has {n_tokens} tokens, expected {len(chat['ids'])} as in training")
    return wrong


def trained(arguments, place: Path, model: str, run: str, system) -> list:
    """Trains `model` for one step as `run`, exports it for Ollama, and returns the chats with their ids in training."""
    config = {"model": {"model_name_or_path": model, "compute_dtype": "f32"}, "lora": {"r": 4}}
    data = {"train": ["train.jsonl"], "eval": ["rows.jsonl"]} | ({} if system is None else {"system": system})
    config |= {"data": data, "train": {"output_dir": run, "max_steps": 1}, "eval": {"eval_strategy": "no"}}
    lines = []
    for table, fields in config.items():
        lines += [f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in fields.items())]
    (place / f"{run}.toml").write_text("\n".join(lines))
    tooltune(arguments, place, "train", f"{run}.toml")
    last = ["--checkpoint", "last"]
    tooltune(arguments, place, "export", run, *last, "--to", "ollama", "--output", f"{run}-ollama")
    tooltune(arguments, place, "verify", run, *last, "--rows", len(CHATS), "--logits", f"{run}.safetensors")
    ids = [ids.tolist() for ids, _ in read_prompts(place / f"{run}.safetensors")]
    asked = [[{"role": role, "content": text} for role, text in chat[:-1]] for chat in CHATS]
    return [{"messages": messages, "ids": ids} for messages, ids in zip(asked, ids, strict=True)]


def tiny_models(arguments) -> list:
    wrong = []
    for case in CASES:
        name, system = case[0], case[-1]
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            write_model(place / "model", case)
            rows = [json.dumps({"messages": [{"role": role, "content": text} for role, text in chat]}) for chat in CHATS]
            (place / "rows.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
            training_row = {"messages": [{"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": "4"}]}
            (place / "train.jsonl").write_text(json.dumps(training_row) + "\n")
            found = []
            for model, run in (("model", "folder"), ("base.gguf", "gguf")):
                chats = trained(arguments, place, model, run, system)
                found += checked(place / f"{run}-ollama", chats)
                if model == "model":
                    base = ["--checkpoint", "base", "--to", "gguf", "--merged", "--dtype", "f32", "--output", "base.gguf"]
                    tooltune(arguments, place, "export", run, *base)
            print(f"{name}: {2 * len(CHATS)} chats, {len(found)} differ", flush=True)
            wrong += found
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--export", type=Path, help="output of `tooltune export RUN --to ollama`; default: tiny models")
    parser.add_argument("--chats", type=Path, help='JSON list of {"messages", "ids"}: chats with their token ids in training')
    default = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release/tooltune"
    parser.add_argument("--tooltune", type=Path, default=default, help=f"the program ({default})")
    parser.add_argument("--record", action="store_true", help="write the result for the tiny models into benchmarks/verification.md")
    arguments = parser.parse_args()
    arguments.tooltune = arguments.tooltune.absolute()
    if (arguments.export is None) != (arguments.chats is None):
        parser.error("give --export and --chats together")
    if arguments.record and arguments.export:
        parser.error("--record records the tiny models; omit --export")
    if arguments.export:
        chats = json.loads(arguments.chats.read_text(encoding="utf-8"))
        wrong = checked(arguments.export, chats)
        print(f"{arguments.export}: {len(chats)} chats, {len(wrong)} differ")
    else:
        wrong = tiny_models(arguments)
    for line in wrong:
        print(line, file=sys.stderr)
    if arguments.record and not wrong:
        go = subprocess.run(["go", "version"], capture_output=True, text=True, check=True).stdout.split()[2].removeprefix("go")
        text = (
            f"{len(CASES)} chat templates, each trained from a folder and from a GGUF file, with {len(CHATS)} chats. Ollama's prompt has the "
            "same tokens as in training. So does the prompt of llama.cpp's own template engine, except if its `trim` leaves white "
            f"space outside ASCII. {datetime.date.today().isoformat()}, Go {go}, xllamacpp {importlib.metadata.version('xllamacpp')}."
        )
        record(ROOT / "benchmarks/verification.md", "scripts/verify/ollama", "Prompts of Ollama", text)
    print("verify/ollama: " + ("tokens differ" if wrong else "the prompts of Ollama and llama.cpp have the tokens of training"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
