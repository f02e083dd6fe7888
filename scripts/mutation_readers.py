"""The readers under mutation: small files of each kind, and the cheapest command that reads them."""

import json
import shutil
import struct
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "tests" / "fixtures"

CONFIG = """device = "cpu"
[model]
model_name_or_path = "model"
[lora]
r = 2
lora_alpha = 4
[data]
train = ["rows.jsonl"]
eval = ["slot.jsonl"]
format = "auto"
max_length = 4096
[train]
output_dir = "run"
max_steps = 2
per_device_train_batch_size = 2
logging_steps = 1
[eval]
eval_steps = 1
suites = ["slot"]
max_new_tokens = 1
encoder = "encoder"
metric_for_best_model = "slot.mean"
[checkpoint]
save_steps = 1
"""
GOAT = """device = "cpu"
[model]
model_name_or_path = "model"
[lora]
[data]
train = ["trajectories.jsonl"]
format = "goat"
max_length = 8192
[goat]
documents = "documents.jsonl"
method = "{method}"
[train]
output_dir = "goat-run"
max_steps = 1
[eval]
eval_strategy = "no"
"""
ROWS = CONFIG.replace('eval = ["slot.jsonl"]', "").split("[eval]")[0].replace('"run"', '"rows-run"') + '[eval]\neval_strategy = "no"\n'
RETRIEVER = """device = "cpu"
[retriever]
model_name_or_path = "encoder"
train = ["pairs.jsonl"]
eval = ["held-out.jsonl"]
[train]
output_dir = "retriever-run"
max_steps = 1
"""

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "pattern": "^[A-Z][a-z]+$"},
        "days": {"type": "array", "items": {"$ref": "#/$defs/day"}, "maxItems": 3, "uniqueItems": True},
        "unit": {"enum": ["C", "F", None]},
        "depth": {"anyOf": [{"type": "number", "minimum": 0, "maximum": 90, "multipleOf": 0.5}, {"type": "null"}]},
        "more": {"allOf": [{"type": "object"}, {"required": ["a"]}], "patternProperties": {"^a": {"type": "boolean"}}, "additionalProperties": False},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
    "$defs": {"day": {"type": "string", "format": "date"}},
}  # fmt: skip
GOLD = {"city": "Oslo", "days": ["2024-05-01"], "unit": "C", "depth": 3.5, "more": {"a": True}}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]},
    },
}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
MESSAGES = {
    "messages": [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "How warm is it in Oslo?"},
        {"role": "assistant", "content": "Three degrees.", "weight": 1},
    ]
}
# With a template that renders tools and calls.
CALLS = {
    "tools": [TOOL],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "How warm is it in Oslo?"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": '{"degrees": -3}'},
        {"role": "assistant", "content": "Three below zero.", "train": True},
    ],
}
COMPLETION = {"prompt": [{"role": "user", "content": "1 + 1?"}], "completion": [{"role": "assistant", "content": "2"}], "weight": 2}
MATHQA = {
    "Problem": "a ferry carries 4 lorries and 1,200 passengers . how many passengers per lorry , in % of 1,000 ?",
    "options": "a ) 25 % , b ) 1 / 2 , c ) 30 % , d ) 2 √ 2 , e ) none",
    "correct": "c",
    "annotated_formula": "multiply(divide(divide(1,200, 4), 1,000), const_100)",
    "linear_formula": "divide(n1,n0)|divide(#0,n2)|multiply(#1,const_100)|",
}
SLOT = {"input_text": "Oslo is cold on the first of May.", "json_schema": SCHEMA, "gold": GOLD}
XLAM = {
    "id": 1,
    "query": "How warm is it in Oslo?",
    "tools": json.dumps([{"name": "weather", "description": "Weather.", "parameters": {"city": {"type": "str", "description": "City.", "default": "Oslo"}}}]),
    "answers": json.dumps([{"name": "weather", "arguments": {"city": "Oslo"}}]),
}
OPENAPI = {
    "openapi": "3.0.0",
    "info": {"title": "Sky", "version": "1"},
    "servers": [{"url": "https://{host}/v1", "variables": {"host": {"default": "sky.example.org"}}}],
    "paths": {
        "/weather/{city}": {
            "parameters": [{"$ref": "#/components/parameters/City"}],
            "get": {
                "summary": "Weather of a city.",
                "parameters": [{"name": "days", "in": "query", "schema": {"type": "array", "items": {"type": "integer"}}, "style": "form", "explode": True}],
                "responses": {"200": {"description": "Degrees.", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Day"}}}}},
            },
            "post": {"requestBody": {"required": True, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Day"}}}}, "responses": {}},
        }
    },
    "components": {
        "parameters": {"City": {"name": "city", "in": "path", "required": True, "schema": {"type": "string"}}},
        "schemas": {"Day": {"type": "object", "properties": {"degrees": {"type": "number"}, "next": {"$ref": "#/components/schemas/Day"}}}},
    },
}

BLOCK = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Oslo"}}
QUESTION = {"role": "user", "parts": [{"type": "text", "content": "How warm is it in Oslo?"}]}
REPLY = {"role": "assistant", "parts": [{"type": "text", "content": "-3"}], "finish_reason": "stop"}
ATTRIBUTES = {"gen_ai.input.messages": [QUESTION], "gen_ai.output.messages": [REPLY]}
SPAN = {
    "traceId": "t",
    "spanId": "s",
    "attributes": [{"key": key, "value": {"stringValue": json.dumps(value)}} for key, value in ATTRIBUTES.items()],
    "events": [{"name": "gen_ai.evaluation.result", "attributes": [{"key": "gen_ai.evaluation.score.value", "value": {"doubleValue": 0.5}}]}],
}
TRACES = [
    {"resourceSpans": [{"scopeSpans": [{"spans": [SPAN]}]}]},
    {"request": {"messages": MESSAGES["messages"][:2]}, "response": {"choices": [{"message": MESSAGES["messages"][-1]}]}, "score": 0.5},
    {"type": "user", "uuid": "u", "parentUuid": None, "message": {"role": "user", "content": "Mail ida@example.org"}},
    {"type": "assistant", "uuid": "a", "parentUuid": "u", "message": {"id": "m", "role": "assistant", "content": [BLOCK]}},
    {"type": "response_item", "payload": {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}},
    {"type": "response_item", "payload": {"type": "function_call", "name": "weather", "arguments": '{"city": "Oslo"}', "call_id": "c1"}},
    {"messages": [{"type": "human", "content": "Hi"}, {"type": "ai", "content": "Hello", "tool_calls": []}]},
]


@dataclass(frozen=True)
class Reader:
    """Files, one of which is mutated, and the commands that read it."""

    name: str
    files: list[str]
    commands: list[list[str]]
    # Folders that a command may change, which must be restored after it.
    changed: list[str] = field(default_factory=list)
    # Whether a command handles every line of its file separately.
    lines_alone: bool = False
    # Whether it reads all lines of its file even if some are invalid; code after reading is then only reached by a file
    # with one line.
    lines_together: bool = False


def inspect(config: str, *more: str) -> list[str]:
    # A separate folder, because others may already have a run with another config.
    return ["inspect", config, *setting("train.output_dir", "inspected"), *more]


def setting(key: str, value: object) -> list[str]:
    return ["--set", f"{key}={json.dumps(value)}"]


GENERATE = ["generate", "config.toml", "--max-samples", "1", "--set", "eval.max_new_tokens=1"]


def rows(name: str, form: str, *more: str) -> Reader:
    of_file = setting("data.train", [f"{name}.jsonl"]) + setting("data.format", form)
    return Reader(name, [f"{name}.jsonl"], [inspect("rows.toml", *of_file, *more)], lines_together=True)


def readers() -> list[Reader]:
    tools = setting("data.chat_template", "tools.jinja")
    methods = ["global", "react-id"]
    trajectories = ["trajectories.jsonl", "documents.jsonl"]
    gguf = setting("model.model_name_or_path", "tiny.gguf")
    resume = ["train", "config.toml"]
    return [
        *[rows(form, form) for form in ["messages", "slot", "alpaca"]],
        rows("sharegpt", "sharegpt", *tools),
        rows("completion", "prompt-completion"),
        rows("calls", "messages", *tools),
        rows("xlam", "xlam", *tools),
        rows("format", "auto"),
        Reader("pairs", ["pairs.jsonl"], [["plan", "retriever.toml"]], lines_together=True),
        Reader("trajectories", ["trajectories.jsonl"], [inspect(f"{method}.toml") for method in methods], lines_together=True),
        Reader("API documents", ["documents.jsonl"], [inspect(f"{method}.toml") for method in methods]),
        Reader("trajectories to pairs", trajectories, [["data", "pairs", "trajectories.jsonl", "--documents", "documents.jsonl", "--output", "made.jsonl"]]),
        Reader("traces", ["traces.jsonl"], [["data", "import", "traces", "traces.jsonl", "--output", "made.jsonl"]]),
        Reader("OpenAPI", ["openapi.json"], [["data", "import", "openapi", "openapi.json", "--output", "made.jsonl"]]),
        Reader("MathQA", ["mathqa.jsonl"], [["data", "import", "mathqa", "mathqa.jsonl", "--output", "made.jsonl"]]),
        Reader("config", ["config.toml", "global.toml"], [["plan", "--offline", "MUTATED", *setting("train.output_dir", "fresh")]]),
        Reader("config of a retriever", ["retriever.toml"], [["plan", "retriever.toml"]]),
        Reader("config.json", ["model/config.json"], [["plan", "config.toml"], GENERATE + ["--checkpoint", "base"]]),
        Reader("generation_config.json", ["model/generation_config.json"], [GENERATE + ["--checkpoint", "base"]]),
        Reader("tokenizer.json", ["model/tokenizer.json"], [inspect("config.toml")]),
        Reader("tokenizer_config.json", ["model/tokenizer_config.json"], [inspect("config.toml")]),
        Reader("chat template", ["tools.jinja", "model/chat_template.jinja"], [inspect("rows.toml", *setting("data.train", ["calls.jsonl"]), *setting("data.chat_template", "MUTATED"))]),
        Reader("GGUF", ["tiny.gguf"], [inspect("config.toml", *gguf), GENERATE + ["--checkpoint", "base", *gguf]]),
        Reader("safetensors", ["model/model.safetensors"], [GENERATE + ["--checkpoint", "base"]]),
        Reader("adapter", ["adapter/adapter_config.json", "adapter/adapter_model.safetensors"], [GENERATE + ["--checkpoint", "adapter"]]),
        Reader(
            "run",
            ["run/LATEST", "run/BEST", "run/metrics.jsonl", "run/timing.jsonl", "run/run.lock.json", "run/config.resolved.toml", *RUN_FILES],
            [["report", "run", "--output", "report.html"], ["select", "run", "--metric", "slot.mean"], resume],
            changed=["run"],
        ),
        Reader("score", ["score.jsonl"], [["score", "--encoder", "encoder", "score.jsonl"]], lines_alone=True),
        Reader("predictions", ["predictions.jsonl"], [["eval", "config.toml", "--predictions", "predictions.jsonl"]]),
        Reader("constraint", ["constrained.jsonl"], [["eval", "config.toml", "--checkpoint", "base", "--set", "eval.constrained=true", "--data", "constrained.jsonl"]]),
        Reader(
            "encoder",
            ["encoder/config.json", "encoder/tokenizer.json", "encoder/modules.json", "encoder/sentence_bert_config.json", "encoder/model.safetensors"],
            [["score", "--encoder", "encoder", "similar.jsonl"]],
        ),
        Reader("questions", ["questions.jsonl", "responses.jsonl", "outputs.jsonl"], [QUESTIONS]),
        Reader("templates", ["templates.toml", "responses.jsonl"], [["data", "synth", "toolqa", "--responses", "responses.jsonl", "--templates", "templates.toml", "--rows", "4", "--output", "/dev/null", "--output-responses", "/dev/null"]]),
    ]


CHECKPOINT = "run/checkpoint-000002"
RUN_FILES = [f"{CHECKPOINT}/{name}" for name in ["adapter_config.json", "trainer_state.json", "manifest.json"]]
TEMPLATES = """[[template]]
task = "price"
type = "EXTRACTIVE"
question = "What does {hotel} cost?"
slots = { hotel = "name" }
program = { records = "data", where = [["name", "==", "{hotel}"]], answer = "value", field = "price" }
"""
QUESTIONS = ["eval", "config.toml", "--suite", "toolqa", "--data", "questions.jsonl", "--set", "eval.toolqa.responses=responses.jsonl", "--predictions", "outputs.jsonl"]


def kind(path: str) -> str:
    return {".json": "json", ".jsonl": "jsonl", ".toml": "toml", ".safetensors": "safetensors", ".gguf": "gguf"}.get(Path(path).suffix, "bytes")


def lines(values: list) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def write(folder: Path, name: str, data: bytes | str | list) -> None:
    data = lines(data) if isinstance(data, list) else data.encode() if isinstance(data, str) else data
    (folder / name).write_bytes(data)


def lay_out(folder: Path, binary: Path) -> None:
    """Every file of every reader, without mutations."""
    shutil.copytree(FIXTURES / "tiny_chat_model", folder / "model")
    shutil.copytree(FIXTURES / "retriever" / "model", folder / "encoder")
    for name in ["alpaca", "sharegpt"]:
        shutil.copy(FIXTURES / "rows" / f"{name}.jsonl", folder)
    shutil.copy(ROOT / "data/template/src/chat_templates/chatml-tools.jinja", folder / "tools.jinja")
    for name, data in {
        "config.toml": CONFIG,
        "rows.toml": ROWS,
        "retriever.toml": RETRIEVER,
        **{f"{method}.toml": GOAT.format(method=method) for method in ["global", "react-id"]},
        "messages.jsonl": [MESSAGES],
        "calls.jsonl": [CALLS],
        "format.jsonl": [COMPLETION],
        "completion.jsonl": [COMPLETION],
        "slot.jsonl": [SLOT, SLOT],
        "constrained.jsonl": [SLOT],
        "rows.jsonl": [SLOT] * 4,
        "xlam.jsonl": [XLAM],
        "openapi.json": json.dumps(OPENAPI),
        "mathqa.jsonl": [MATHQA],
        "traces.jsonl": "".join(json.dumps(entry) + "\n" for entry in TRACES),
        "held-out.jsonl": [{"anchor": f"question {n}", "positive": f"page {n}"} for n in range(2)],
        "predictions.jsonl": [{"id": "slot.jsonl:1", "prediction": json.dumps(GOLD)}, {"id": "slot.jsonl:2", "prediction": "{"}],
        "similar.jsonl": [{"op": "slot.value_sim", "input": {"a": "Oslo", "b": "the port of Bergen"}}],
        "responses.jsonl": [{"response_id": "r1", "endpoint": "hotels", "split": "paper", "response": {"data": [{"name": "Pier", "price": 80}]}}],
        "questions.jsonl": [
            {"uid": "a", "response_id": "r1", "endpoint": "hotels", "task": "t", "task_type": "EXTRACTIVE", "metric": "approx_number_match", "question": "Price?", "gold_answer": "80"}
        ],
        "templates.toml": TEMPLATES,
        "outputs.jsonl": [{"uid": "a", "model_output": "80", "finish_reason": "stop", "n_tokens": 1}],
    }.items():
        write(folder, name, data)
    scored = (ROOT / "data" / "score" / "tests" / "fixtures" / "score").glob("*.jsonl")
    write(folder, "score.jsonl", b"".join(path.read_bytes() for path in sorted(scored)))
    write(folder, "tiny.gguf", gguf(folder / "model"))
    for command in [
        ["data", "synth", "goat", "--output", "trajectories.jsonl", "--documents", "documents.jsonl", "--rows", "2"],
        ["data", "pairs", "trajectories.jsonl", "--documents", "documents.jsonl", "--output", "pairs.jsonl"],
        ["train", "config.toml"],
    ]:
        done = subprocess.run([binary, *command], cwd=folder, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"mutations: {' '.join(command)}: {done.stderr}")
    shutil.copytree(folder / CHECKPOINT, folder / "adapter")


def gguf(model: Path) -> bytes:
    """A folder's model as GGUF, except for the row order of rotary pairs."""
    config = json.loads((model / "config.json").read_text())
    tokenizer = json.loads((model / "tokenizer.json").read_text())["model"]
    weights = (model / "model.safetensors").read_bytes()
    (length,) = struct.unpack_from("<Q", weights)
    header, start = json.loads(weights[8 : 8 + length]), 8 + length
    names = {
        "model.embed_tokens": "token_embd", "model.norm": "output_norm", "model.layers": "blk", "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    }  # fmt: skip

    def string(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def typed(value: object) -> bytes:
        match value:
            case int():
                return struct.pack("<II", 4, value)
            case float():
                return struct.pack("<If", 6, value)
            case str():
                return struct.pack("<I", 8) + string(value)
            case [str(), *_]:
                return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(string, value))
            case _:
                return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)

    vocabulary = sorted(tokenizer["vocab"], key=tokenizer["vocab"].get)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["merges"]]
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": config["num_hidden_layers"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "llama.rope.freq_base": config["rope_theta"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": vocabulary,
        "tokenizer.ggml.token_type": [3 if token.startswith("<|") else 1 for token in vocabulary],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": config["bos_token_id"],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
        "tokenizer.chat_template": (model / "chat_template.jinja").read_text(),
    }
    tensors, infos, offset = [], [], 0
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        for old, new in names.items():
            name = name.replace(old, new)
        begin, end = tensor["data_offsets"]
        shape = tensor["shape"][::-1]
        infos.append(string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, offset))
        data = weights[start + begin : start + end]
        tensors.append(data + bytes(-len(data) % 32))
        offset += len(tensors[-1])
    out = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(metadata))
    out += b"".join(string(key) + typed(value) for key, value in metadata.items()) + b"".join(infos)
    return out + bytes(-len(out) % 32) + b"".join(tensors)
