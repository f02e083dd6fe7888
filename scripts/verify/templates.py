#!/usr/bin/env python3
"""Renders the chat templates in trl's wheel with `tooltune inspect` and transformers, and checks which tokens are supervised.

Each conversation is rendered twice by each template: with the last turn supervised, and with every turn supervised. A case is
right if two conditions hold. First, the text equals the text from transformers; if tooltune reports that it appended a stop token,
which the template writes only before the next message, the text ends with that token. Second, the supervised part of each turn is
the text from the end of its prompt to its stop token. The prompt is found here in another way than in tooltune: transformers
renders three generation prompts (by default, with thinking on, with thinking off), and the longest one that the text starts with
is used. If there is none, the prompt ends after the words that open an answer (FAMILIES). An empty thought after the prompt
belongs to the prompt. Every other case must be refused by tooltune with a reason of REFUSALS, for example if the template drops
reasoning.
"""

import argparse
import collections
import datetime
import importlib.metadata
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT / "scripts")

import jinja2
import numpy
from safetensors.numpy import load_file, save_file
from transformers.utils import chat_template_utils

from verification_section import record

TRL = "1.16.0"
DAY = datetime.date(2026, 11, 26)

# By prefix of the template's name: the words that open an answer, and the stop tokens.
FAMILIES = {
    "cohere2": ("<|CHATBOT_TOKEN|><|START_RESPONSE|>", ["<|END_OF_TURN_TOKEN|>"]),
    "cohere": ("<|CHATBOT_TOKEN|>", ["<|END_OF_TURN_TOKEN|>"]),
    "deepseek": ("<｜Assistant｜>", ["<｜end▁of▁sentence｜>"]),
    "diffusion_gemma": ("<|turn>model\n", ["<turn|>", "<|tool_response>"]),
    "gemma4": ("<|turn>model\n", ["<turn|>", "<|tool_response>"]),
    "gemma": ("<start_of_turn>model\n", ["<end_of_turn>"]),
    "glm4moe": ("<|assistant|>", ["<|endoftext|>", "<|user|>", "<|observation|>"]),
    "gptoss": ("<|start|>assistant", ["<|return|>", "<|call|>"]),
    "idefics3": ("Assistant:", ["<end_of_utterance>"]),
    "llama3": ("<|start_header_id|>assistant<|end_header_id|>\n\n", ["<|eot_id|>"]),
    "llava_next": (" [/INST]", ["</s>"]),
    "muse_glimmer": ("<|start|>assistant", ["<|eot|>"]),
    "phi3": ("<|assistant|>\n", ["<|end|>"]),
    "smolvlm": ("Assistant:", ["<end_of_utterance>"]),
    "": ("<|im_start|>assistant\n", ["<|im_end|>"]),
}
BOS = {"llama": "<|begin_of_text|>", "gemma": "<bos>", "deepseek": "<｜begin▁of▁sentence｜>", "": "<s>"}
MARKS = ["<think>", "</think>", "<|im_start|>", "<tool_call>", "</tool_call>"]
# Prefixes of the permitted reasons for a refusal, and whether transformers must also fail.
REFUSALS = {
    "the chat template leaves out ": False,
    "the chat template renders no tools": False,
    "no supervised stop token at the end of message ": False,
    "the chat template refuses the conversation: ": True,
    "chat template, line ": True,
}
EMPTY_THOUGHT = re.compile(r"<think>\s*</think>")

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "harbour_depth",
            "description": "Depth of a harbour in metres.",
            "parameters": {
                "type": "object",
                "properties": {"harbour": {"type": "string", "description": "Its name."}},
                "required": ["harbour"],
            },
        },
    }
]


def user(content):
    return {"role": "user", "content": content}


def answer(content, thought=None):
    message = {"role": "assistant", "content": content}
    return message if thought is None else {**message, "reasoning_content": thought}


def calls(*harbours, thought=None):
    listed = [
        {"id": f"call{i}abcd", "type": "function", "function": {"name": "harbour_depth", "arguments": {"harbour": harbour}}}
        for i, harbour in enumerate(harbours)
    ]
    return {**answer("", thought), "tool_calls": listed}


def result(text, i=0):
    return {"role": "tool", "tool_call_id": f"call{i}abcd", "name": "harbour_depth", "content": text}


CASES = {
    "plain": {"messages": [user("How deep is Northcove?"), answer("7 metres.")]},
    "system": {"messages": [{"role": "system", "content": "Be brief."}, user("How deep is Northcove?"), answer("7 metres.")]},
    "multi-turn": {"messages": [user("Hello."), answer("Good day."), user("How deep is Northcove?"), answer("7 metres.")]},
    "tools": {
        "messages": [user("How deep is Northcove?"), calls("Northcove"), result("7"), answer("7 metres.")],
        "tools": TOOLS,
    },
    "parallel": {
        "messages": [user("And both?"), calls("Northcove", "Southcove"), result("7"), result("9", 1), answer("7 and 9 metres.")],
        "tools": TOOLS,
    },
    "reasoning": {"messages": [user("How deep is Northcove?"), answer("7 metres.", "The chart says 7.")]},
    "reasoning-tools": {
        "messages": [
            user("Hello."),
            answer("Good day.", "A greeting."),
            user("How deep is Northcove?"),
            calls("Northcove", thought="I look it up."),
            result("7"),
            answer("7 metres.", "It says 7."),
        ],
        "tools": TOOLS,
    },
}


class FrozenClock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(DAY.year, DAY.month, DAY.day)


def of_family(table, name):
    return next(value for beginning, value in table.items() if name.startswith(beginning))


def render(source, case, bos, messages=None, **variables):
    try:
        texts, _ = chat_template_utils.render_jinja_template(
            conversations=[case["messages"] if messages is None else messages],
            tools=case.get("tools"),
            chat_template=source,
            bos_token=bos,
            eos_token="<|endoftext|>",
            **variables,
        )
        return texts[0]
    except (jinja2.exceptions.TemplateError, TypeError, AttributeError, KeyError) as error:
        return error


def templates(folder):
    """The templates of the pinned wheel, from an installed trl or from PyPI."""
    try:
        is_installed = importlib.metadata.version("trl") == TRL
    except importlib.metadata.PackageNotFoundError:
        is_installed = False
    if is_installed:
        files = [Path(file.locate()) for file in importlib.metadata.files("trl") if str(file).endswith(".jinja")]
        return {path.stem: path.read_text(encoding="utf-8") for path in sorted(files)}
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, f"trl=={TRL}"]
    subprocess.run(pip, check=True)
    with zipfile.ZipFile(next(Path(folder).glob("trl-*.whl"))) as wheel:
        names = [name for name in wheel.namelist() if name.endswith(".jinja")]
        return {Path(name).stem: wheel.read(name).decode() for name in sorted(names)}


def make_model(folder, source, bos, stops):
    """Writes the tiny chat model with another template, its stop tokens and the marks that templates write."""
    shutil.copytree(ROOT / "tests" / "fixtures" / "tiny_chat_model", folder)
    (folder / "chat_template.jinja").write_text(source, encoding="utf-8")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    n_tokens = len(tokenizer["model"]["vocab"])
    known = {token["content"] for token in tokenizer["added_tokens"]}
    ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    for text in [*stops, *MARKS, bos]:
        if text not in known:
            added = {"id": n_tokens, "content": text, "single_word": False, "lstrip": False, "rstrip": False}
            tokenizer["added_tokens"].append({**added, "normalized": False, "special": True})
            known.add(text)
            ids[text] = n_tokens
            n_tokens += 1
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": n_tokens}))
    # Each added token has a row of the embedding; the head is tied to it.
    weights = load_file(folder / "model.safetensors")
    embedding = weights["model.embed_tokens.weight"]
    grown = numpy.zeros((n_tokens, embedding.shape[1]), embedding.dtype)
    grown[: len(embedding)] = embedding
    save_file({**weights, "model.embed_tokens.weight": grown}, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [ids[stop] for stop in stops]}))
    names = {"bos_token": bos, "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**names, "tokenizer_class": "PreTrainedTokenizerFast"}))


def inspect(tooltune, folder, case, train_on):
    """Returns the inspected row, or the reason for the refusal."""
    rows = folder / "row.jsonl"
    rows.write_text(json.dumps(case) + "\n")
    config = folder / "config.toml"
    config.write_text(
        f'[model]\nmodel_name_or_path = "{folder / "model"}"\n[lora]\n[data]\ntrain = ["{rows}"]\nformat = "messages"\n'
        f'max_length = 8192\ntemplate_date = "{DAY}"\n[mask]\ntrain_on = "{train_on}"\n'
        f'[train]\noutput_dir = "{folder / "run"}"\nmax_steps = 1\n'
    )
    done = subprocess.run([tooltune, "inspect", config, "--format", "json"], capture_output=True, text=True)
    if done.returncode:
        return None, done.stderr.replace(str(rows), "row").strip()
    return json.loads(done.stdout.splitlines()[0]), None


def expected_span(source, case, bos, text, message, header, stops):
    """Start and end of the supervised part of a turn in the text."""
    before = case["messages"][:message]
    answer = case["messages"][message]
    switches = [{}, {"enable_thinking": True}, {"enable_thinking": False}]
    prompts = [render(source, case, bos, before, add_generation_prompt=True, **switch) for switch in switches]
    fitting = [len(prompt) for prompt in prompts if isinstance(prompt, str) and text.startswith(prompt)]
    if fitting:
        start = max(fitting)
    else:
        header_ends = [found.end() for found in re.finditer(re.escape(header), text)]
        n_before = sum(m["role"] == "assistant" for m in before)
        start = header_ends[n_before]
    # Skip an empty thought at this position, and the white space that follows it in the prompt with thinking off.
    for empty in EMPTY_THOUGHT.finditer(text):
        if text[start : empty.start()].strip() == "" and empty.end() > start and text[empty.start() + 7 : start].strip() == "":
            closed = re.search(r"</think>(\s*)$", prompts[2]) if isinstance(prompts[2], str) else None
            start = empty.end() + len(closed[1]) if closed else re.compile(r"\s*").match(text, empty.end()).end()
            break
    # The stop token is the first one after the last piece of the message. Each piece occurs once per conversation.
    pieces = [answer["content"]] + [call["function"]["arguments"]["harbour"] for call in answer.get("tool_calls", [])]
    at = max(text.find(piece, start) + len(piece) for piece in pieces)
    ends = [found + len(stop) for stop in stops for found in [text.find(stop, at)] if found >= 0]
    return start, min(ends)


def supervised(row):
    """The runs of supervised tokens, as strings."""
    runs, last = [], None
    for token in row["tokens"]:
        if token["weight"] == 0:
            last = None
            continue
        if last is None:
            runs.append([token["start"], token["end"]])
        runs[-1][1] = last = token["end"]
    text = row["text"].encode()
    return [text[start:end].decode() for start, end in runs]


def judge(source, case, bos, row, train_on, family):
    """Returns the error in an inspected row, or None."""
    header, stops = family
    text = render(source, case, bos, add_generation_prompt=False)
    if isinstance(text, Exception):
        return f"transformers fails ({text}), tooltune renders"
    if row["text"] != text + row.get("appended", ""):
        return "the texts differ"
    if row.get("appended", stops[0]) not in stops:
        return "the appended token is not a stop token"
    messages = case["messages"]
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    turns = turns if train_on == "assistant" else turns[-1:]
    expected = [row["text"][slice(*expected_span(source, case, bos, row["text"], i, header, stops))] for i in turns]
    found = supervised(row)
    # Turns without a prompt between them, such as a call of Gemma 4 before its result, would be one run.
    if found != expected:
        return f"supervised {found}, expected {expected}"
    for i, part in zip(turns, expected):
        missing = [piece for piece in [messages[i]["content"], *(["harbour_depth"] if "tool_calls" in messages[i] else [])] if piece not in part]
        thought = messages[i].get("reasoning_content")
        if thought and thought not in part:
            missing.append(thought)
        if missing:
            return f"{missing} of message {i} is not supervised"
    return None


def is_known(reason, source, case, bos):
    """Whether the reason is a permitted one. Other reasons, such as a model that does not load, are errors."""
    for beginning, must_fail in REFUSALS.items():
        if reason.startswith(beginning):
            return not must_fail or isinstance(render(source, case, bos, add_generation_prompt=False), Exception)
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tooltune", required=True)
    parser.add_argument("--only", help="a template, or the beginning of its name")
    parser.add_argument("--record", action="store_true", help="write the table into benchmarks/verification.md")
    arguments = parser.parse_args()
    chat_template_utils.datetime = FrozenClock
    work = Path(tempfile.mkdtemp())
    found = {name: source for name, source in templates(work).items() if name.startswith(arguments.only or "")}
    lines, wrong, totals, reasons = [], [], collections.Counter(), collections.defaultdict(list)
    for name, source in found.items():
        family, bos = of_family(FAMILIES, name), of_family(BOS, name)
        folder = work / name
        folder.mkdir()
        make_model(folder / "model", source, bos, family[1])
        counts = collections.Counter()
        for case_name, case in CASES.items():
            for train_on in ("completion", "assistant"):
                row, reason = inspect(arguments.tooltune, folder, case, train_on)
                counts["tried"] += 1
                if row is None:
                    short = re.sub(r"^error: ", "", reason).split("row:1: ")[-1].split("; ")[0].splitlines()[0]
                    if not is_known(short, source, case, bos):
                        wrong.append(f"{name}/{case_name}/{train_on}: refused: {reason}")
                        continue
                    counts["refused"] += 1
                    reasons[short].append(f"{name}/{case_name}/{train_on}")
                    if arguments.only:
                        print(f"{name}/{case_name}/{train_on}: {reason}")
                    continue
                fault = judge(source, case, bos, row, train_on, family)
                counts["right"] += fault is None
                if fault:
                    wrong.append(f"{name}/{case_name}/{train_on}: {fault}")
        totals.update(counts)
        lines.append(f"| {name} | {counts['tried']} | {counts['right']} | {counts['refused']} |")
        shutil.rmtree(folder)
    shutil.rmtree(work)
    n_bases = sum(not name.endswith("_training") for name in found)
    head = (
        f"{len(found)} templates of trl {TRL} ({n_bases} of models, {len(found) - n_bases} of trl's for training), {len(CASES)} "
        f"conversations, each with only the last turn and with every turn supervised: {totals['tried']} cases, {totals['right']} with "
        f"the text of transformers and the right tokens supervised, {totals['refused']} refused with a reason, {len(wrong)} wrong; "
        f"{datetime.date.today().isoformat()}, Python {platform.python_version()}, "
        f"transformers {importlib.metadata.version('transformers')}, jinja2 {jinja2.__version__}."
    )
    table = "\n".join(["| template | cases | right | refused |", "|---|---|---|---|", *lines])
    why = "\n".join(["| refused because | cases | example |", "|---|---|---|"] + [
        f"| {reason.replace('|', '&#124;')} | {len(cases)} | {cases[0]} |"
        for reason, cases in sorted(reasons.items(), key=lambda item: -len(item[1]))
    ])
    print(f"{head}\n\n{table}\n\n{why}\n")
    for line in wrong:
        print(f"WRONG {line}")
    if arguments.record:
        kinds = collections.Counter()
        for reason, cases in reasons.items():
            kinds[next(beginning for beginning in REFUSALS if reason.startswith(beginning))] += len(cases)
        few = "\n".join(["| refused because | cases |", "|---|---|", *(f"| {kind}… | {n} |" for kind, n in kinds.most_common())])
        record(ROOT / "benchmarks" / "verification.md", "scripts/verify/templates", "Chat templates of trl", f"{head}\n\n{few}")
    if not totals["right"]:
        print("no case is right")
    sys.exit(bool(wrong) or not totals["right"])


if __name__ == "__main__":
    main()
