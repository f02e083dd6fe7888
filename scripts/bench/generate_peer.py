#!/usr/bin/env python3
"""Completes prompts greedily with transformers: the other side of scripts/bench/generate.

Reads lines `BATCH NEW_TOKENS WAY` and prints a JSON line for each, as trainer/examples/generate.rs does. WAY is `eager`
(`generate` with its default cache) or `compiled` (`generate` with a static cache and torch.compile; the first request
of a batch size compiles). Inductor packs the weights for more than one row; for one row it is faster without packing.
Prompts have equal lengths, so nothing is padded or masked.
"""

import argparse
import json
import sys
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
from transformers import AutoModelForCausalLM, CompileConfig, GenerationConfig
from transformers.generation.streamers import BaseStreamer
from transformers.utils import logging

import hf_from_gguf

SYSTEM = (
    "You are a helpful assistant with access to these functions. Answer with one JSON object that names a function and its "
    "arguments, and with nothing else. "
    '{"name": "get_weather", "description": "Weather of a city on a day", "parameters": {"city": "string", "day": "string"}} '
    '{"name": "find_train", "description": "Trains between two stations", "parameters": {"from": "string", "to": "string", '
    '"date": "string", "seats": "integer"}} '
    '{"name": "book_table", "description": "Books a table in a restaurant", "parameters": {"restaurant": "string", "people": '
    '"integer", "time": "string"}} '
    '{"name": "convert_currency", "description": "Converts an amount of money", "parameters": {"amount": "number", "from": '
    '"string", "to": "string"}} '
    '{"name": "set_alarm", "description": "Sets an alarm on the phone", "parameters": {"time": "string", "label": "string"}} '
    '{"name": "translate", "description": "Translates a text", "parameters": {"text": "string", "language": "string"}} '
    "If no function fits, answer in one short sentence. Never invent a value that the user has not given, ask for it. "
) * 4
QUESTIONS = [
    "What will the weather be like in Lisbon tomorrow?",
    "I need two seats on a train from Vienna to Graz on Friday.",
    "Book a table for five at the Golden Lion, half past seven.",
    "How much is 250 euros in Japanese yen?",
    "Wake me at six, I have to catch a plane.",
    "How do you say good morning in Finnish?",
    "Is it going to rain in Bergen on Sunday?",
    "Find me a connection from Lyon to Turin on the third of May.",
    "We are twelve people and would like to eat at Chez Marie at eight.",
    "Change 1200 Swiss francs to pounds, please.",
    "Set an alarm called medicine for a quarter past nine.",
    "Translate where is the station to Portuguese.",
    "What was the temperature in Nairobi yesterday?",
    "Are there any trains to Warsaw tonight?",
    "A table for two at the harbour, any time after nine.",
    "How many dollars do I get for 80 Canadian dollars?",
]


def prompts_of(tokenizer, length: int) -> list:
    """Each question after a prefix of the system prompt, so that the prompt has `length` tokens."""
    encode = lambda text: tokenizer(text, add_special_tokens=False).input_ids
    head, system = encode("<|im_start|>system\n"), encode(SYSTEM)
    prompts = []
    for question in QUESTIONS:
        tail = encode(f"<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n")
        room = length - len(head) - len(tail)
        if not 0 < room <= len(system):
            least, most = len(head) + len(tail) + 1, len(head) + len(tail) + len(system)
            raise SystemExit(f"cannot make prompts of {length} tokens; choose a length between {least} and {most}")
        prompts.append(head + system[:room] + tail)
    return prompts


class Clock(BaseStreamer):
    """Records when the first new tokens arrive; `generate` passes it the prompt first."""

    def __init__(self):
        self.n_shown = 0
        self.first = None
        self.start = (time.perf_counter(), time.process_time())

    def since_start(self) -> tuple:
        return time.perf_counter() - self.start[0], time.process_time() - self.start[1]

    def put(self, _tokens):
        self.n_shown += 1
        if self.n_shown == 2:
            self.first = self.since_start()

    def end(self):
        pass


def options(new_tokens: int, way: str) -> GenerationConfig:
    common = dict(max_new_tokens=new_tokens, do_sample=False, eos_token_id=None, pad_token_id=0)
    if way == "eager":
        return GenerationConfig(**common)
    compile_config = CompileConfig(mode="default", dynamic=False)
    compile_config._compile_all_devices = True
    return GenerationConfig(cache_implementation="static", compile_config=compile_config, **common)


def completed(model, prompts: list, new_tokens: int, way: str) -> dict:
    input_ids = torch.tensor(prompts)
    torch._inductor.config.freezing = len(prompts) > 1
    model.generation_config.eos_token_id = None
    clock = Clock()
    output = model.generate(
        input_ids, attention_mask=torch.ones_like(input_ids), generation_config=options(new_tokens, way), streamer=clock
    )
    wall, cpu = clock.since_start()
    first_wall, first_cpu = clock.first
    tokens = output[:, input_ids.shape[1] :].tolist()
    if any(len(row) != new_tokens for row in tokens):
        raise SystemExit(f"rows of {[len(row) for row in tokens]} tokens instead of {new_tokens}")
    return {
        "prefill": {"wall": first_wall, "cpu": first_cpu},
        "decode": {"wall": wall - first_wall, "cpu": cpu - first_cpu},
        "tokens": tokens,
    }


def answered(model, prompts: list, line: str) -> dict:
    batch, new_tokens, way = line.split()
    if int(batch) > len(prompts):
        raise SystemExit(f"{line.strip()}: the file has only {len(prompts)} prompts")
    try:
        return completed(model, prompts[: int(batch)], int(new_tokens), way)
    except Exception as error:  # compilers fail in many ways; the eager side is still useful
        if way == "eager":
            raise
        return {"missing": f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, help="Hugging Face directory of the model")
    parser.add_argument("--prompts", type=Path, required=True, help="JSON list of lists of token ids")
    parser.add_argument("--make-prompts", type=int, metavar="TOKENS", help="write prompts with this number of tokens and stop")
    parser.add_argument("--gguf", type=Path, default=hf_from_gguf.DEFAULT_PATH, help="GGUF with the tokenizer of the prompts")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.make_prompts:
        tokenizer = hf_from_gguf.load_tokenizer(arguments.gguf)
        arguments.prompts.write_text(json.dumps(prompts_of(tokenizer, arguments.make_prompts)))
        return
    if arguments.base is None:
        parser.error("--base is required unless --make-prompts is given")
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.set_num_threads(arguments.threads)
    # Freezing treats anything with a static address as a weight; transformers marks the cache like this, but it is not
    # a weight.
    torch._dynamo.mark_static_address = lambda *_, **__: None
    dtype = torch.bfloat16 if arguments.dtype == "bf16" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(arguments.base, dtype=dtype, attn_implementation="sdpa").eval()
    prompts = json.loads(arguments.prompts.read_text())
    for line in sys.stdin:
        print(json.dumps(answered(model, prompts, line)), flush=True)


if __name__ == "__main__":
    main()
