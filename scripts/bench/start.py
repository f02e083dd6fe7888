#!/usr/bin/env python3
"""Measures the host's time from the start of `tooltune train` to its first step; standard library only. Started by
scripts/bench/start.

The model has the requested shape, with repeating bf16 weights in files of at most 5 GB, as on the Hub, and a tokenizer
with as many tokens as Llama 3's. Its files are read once, so that they are in the page cache; then the program trains
one step of a few rows on the driver of scripts/cuda_on_cpu. That driver's device memory is only addresses: the
source of a copy to the device is read, as by a copy engine, and discarded. Kernels come from the cache of an earlier start; NVRTC
compiles none here, and none computes anything.

The progress of the program is taken from its files and from the driver: the run's config is written when the weights
are loaded, and the timing of a step when the step is done.
"""

import json
import os
import random
import re
import shutil
import statistics
import struct
import subprocess
import time
from pathlib import Path

from machine import ROOT, output_of, say
from page import Options, Page

FAKES = ROOT / "scripts/cuda_on_cpu"
SHAPES = ROOT / "scripts/gpu/shapes"
PAGE = ROOT / "benchmarks/start.md"
SHARD_BYTES = 5 * 10**9
# Period of the repeating weights; not a power of two, so that rows differ.
PATTERN = 8 * 1024 * 1024 + 24
# Bytes per second of a copy from pinned pages: PCIe 4.0 and 5.0 x16 have 31.5 and 63 GB/s per direction, and copies
# reach about four fifths of that.
PCIE = {"PCIe 4.0 x16": 25e9, "PCIe 5.0 x16": 50e9}
LIMIT = 15.0


# ------------------------------------------------------------------------------------------ the model


def tensors_of(shape: dict) -> list:
    """(name, dimensions) of the tensors of a model of this shape, in layer order."""
    d, ff, v = shape["hidden_size"], shape["intermediate_size"], shape["vocab_size"]
    q, kv = (shape[heads] * shape["head_dim"] for heads in ("num_attention_heads", "num_key_value_heads"))
    tensors = [("model.embed_tokens.weight", [v, d])]
    for layer in range(shape["num_hidden_layers"]):
        parts = {
            "input_layernorm": [d], "mlp.down_proj": [d, ff], "mlp.gate_proj": [ff, d], "mlp.up_proj": [ff, d],
            "post_attention_layernorm": [d], "self_attn.k_proj": [kv, d], "self_attn.o_proj": [d, q],
            "self_attn.q_proj": [q, d], "self_attn.v_proj": [kv, d],
        }
        tensors += [(f"model.layers.{layer}.{name}.weight", dims) for name, dims in parts.items()]
    tensors.append(("model.norm.weight", [d]))
    if not shape["tie_word_embeddings"]:
        tensors.append(("lm_head.weight", [v, d]))
    return tensors


def n_bytes(dims: list) -> int:
    return 2 * dims[0] * (dims[1] if len(dims) > 1 else 1)


def write_weights(folder: Path, shape: dict) -> None:
    """Writes files of at most 5 GB, and their index."""
    draw = random.Random(0)
    # The upper halves of f32 values between .0039 and .03, of both signs.
    pattern = bytearray(draw.randbytes(2 * PATTERN))
    for i in range(1, len(pattern), 2):
        pattern[i] = 0x3B | (pattern[i] & 0x80) if pattern[i] & 1 else 0x3C | (pattern[i] & 0x80)
    shards, held = [[]], 0
    for name, dims in tensors_of(shape):
        if held + n_bytes(dims) > SHARD_BYTES and shards[-1]:
            shards.append([])
            held = 0
        shards[-1].append((name, dims))
        held += n_bytes(dims)
    weight_map = {}
    for i, shard in enumerate(shards, 1):
        file = f"model-{i:05}-of-{len(shards):05}.safetensors"
        header, at = {}, 0
        for name, dims in shard:
            header[name] = {"dtype": "BF16", "shape": dims, "data_offsets": [at, at + n_bytes(dims)]}
            weight_map[name] = file
            at += n_bytes(dims)
        text = json.dumps(header).encode()
        with (folder / file).open("wb") as sink:
            sink.write(struct.pack("<Q", len(text)) + text)
            left, view = at, memoryview(pattern)
            while left:
                sink.write(view[: min(left, len(view))])
                left -= min(left, len(view))
    index = {"metadata": {"total_size": sum(n_bytes(dims) for _, dims in tensors_of(shape))}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def byte_letters() -> list:
    """The characters of the 256 bytes in GPT-2's byte-level vocabularies."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) for byte in shown] + [chr(256 + i) for i in range(len(others))]


def write_tokenizer(folder: Path, n_tokens: int) -> None:
    """A byte-level vocabulary of the given size, with random merges."""
    special = ["<|begin_of_text|>", "<|im_start|>", "<|im_end|>"]
    draw, tokens, merges = random.Random(1), byte_letters(), []
    known = set(tokens)
    while len(tokens) < n_tokens - len(special):
        left, right = draw.choice(tokens), draw.choice(tokens)
        if len(left + right) <= 12 and left + right not in known:
            known.add(left + right)
            tokens.append(left + right)
            merges.append([left, right])
    added = [
        {"id": len(tokens) + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True}
        for i, text in enumerate(special)
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
        "fuse_unk": False, "byte_fallback": False, "ignore_merges": True, "merges": merges,
        "vocab": {token: i for i, token in enumerate(tokens)},
    }
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
             "pre_tokenizer": level, "post_processor": level, "decoder": level, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(whole, ensure_ascii=False))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": special[0], "eos_token": special[2], "pad_token": special[0]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


TEMPLATE = """{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def prepared_model(folder: Path, name: str) -> dict:
    """The model's folder, created on the first call, and its shape."""
    shape = json.loads((SHAPES / f"{name}.json").read_text())
    if (folder / "made").exists():
        return shape
    total = sum(n_bytes(dims) for _, dims in tensors_of(shape))
    free = shutil.disk_usage(ROOT).free
    if free < total + 2 * 10**9:
        raise SystemExit(f"bench/start: {name} needs {total / 1e9:.1f} GB of disk, and only {free / 1e9:.1f} GB are free; choose another --shape")
    say(f"writing {name}, {total / 1e9:.1f} GB")
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder, shape["vocab_size"])
    v = shape["vocab_size"]
    (folder / "config.json").write_text(json.dumps(shape | {"bos_token_id": v - 3, "eos_token_id": v - 1, "torch_dtype": "bfloat16"}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    write_weights(folder, shape)
    (folder / "made").write_text("")
    return shape


def read_all(folder: Path) -> tuple:
    """(bytes, seconds) of one thread reading the weights into existing memory."""
    buffer = bytearray(1 << 20)
    started, total = time.monotonic(), 0
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb", buffering=0) as source:
            while n := source.readinto(buffer):
                total += n
    return total, time.monotonic() - started


# ------------------------------------------------------------------------------------------ a start


def prepared_driver(folder: Path) -> dict:
    """The environment in which a program finds the simulated driver, compiler and cuBLASLt."""
    for part in ("driver", "cuda/include/crt"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    libraries = {"libcuda.so.1": "driver.c", "libnvrtc.so": "nvrtc.c", "libcublasLt.so": "cublaslt.c"}
    for library, source in libraries.items():
        command = ["gcc", "-O2", "-shared", "-fPIC", "-o", folder / "driver" / library, FAKES / source, "-ldl"]
        subprocess.run(command, check=True)
    link = folder / "driver/libcuda.so"
    link.unlink(missing_ok=True)
    link.symlink_to("libcuda.so.1")
    # A toolkit with empty headers, which are never read.
    for header in ("cuda_fp16.h", "cuda_bf16.h", "mma.h", "crt/mma.h"):
        (folder / "cuda/include" / header).touch()
    found = os.environ.get("LD_LIBRARY_PATH")
    return os.environ | {
        "CUDA_ON_CPU_KERNELS": "none", "FAKE_CUDA_ADDRESSES": "1", "TOOLTUNE_CUDNN": "0", "CUDA_PATH": str(folder / "cuda"),
        "LD_LIBRARY_PATH": f"{folder / 'driver'}:{found}" if found else str(folder / "driver"), "HOME": str(folder),
    }


def write_config(folder: Path, model: Path) -> Path:
    row = {"messages": [{"role": "user", "content": "Is the table at the window free?"}, {"role": "assistant", "content": "It is."}]}
    (folder / "rows.jsonl").write_text((json.dumps(row) + "\n") * 16)
    config = folder / "start.toml"
    config.write_text(
        f'device = "cuda"\n[model]\nmodel_name_or_path = "{model}"\ncompute_dtype = "bf16"\n[lora]\nr = 16\nlora_alpha = 32\n'
        f'target_modules = "all-linear"\n[data]\ntrain = ["{folder / "rows.jsonl"}"]\n[train]\noutput_dir = "{folder / "run"}"\n'
        "max_steps = 1\nper_device_train_batch_size = 4\nlearning_rate = 1e-4\nlogging_steps = 1\n"
    )
    return config


def started(program: Path, folder: Path, config: Path, environment: dict, cache: Path) -> dict:
    """Breakdown of the seconds of one start."""
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    log = folder / "said.log"
    with log.open("wb") as sink:
        begin = time.time()
        process = subprocess.Popen([program, "train", config], env=environment | {"TOOLTUNE_CACHE": str(cache)}, stdout=sink, stderr=sink)
        first_step = cpu = None
        timing, stat = run / "timing.jsonl", Path(f"/proc/{process.pid}/stat")
        while first_step is None and process.poll() is None:
            if timing.exists() and timing.stat().st_size > 0:
                first_step = time.time()
                fields = stat.read_text().rpartition(")")[2].split()
                cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            time.sleep(0.005)
        _, status, usage = os.wait4(process.pid, 0) if process.returncode is None else (0, process.returncode, None)
        process.returncode = process.returncode or os.waitstatus_to_exitcode(status)
    said = log.read_text(errors="replace")
    if process.returncode or first_step is None:
        raise SystemExit(f"bench/start: {program} exited with status {process.returncode}:\n{said[-3000:]}")
    # A child process may also have opened the driver.
    copies = max(re.finditer(
        r"(\d+) bytes from locked pages and (\d+) from others, read in ([\d.]+) s, first at ([\d.]+), last at ([\d.]+), next launch at "
        r"([\d.]+); they are (\w+)", said), key=lambda found: int(found[1]) + int(found[2]), default=None)
    if not copies:
        raise SystemExit(f"bench/start: the driver printed no checksums; check that it is the one of scripts/cuda_on_cpu\n{said[-3000:]}")
    locked, others, copied, first, last, launch = map(float, copies.groups()[:6])
    named = (run / "run.lock.json").stat().st_mtime
    texts = map(int, re.findall(r"fake NVRTC: (\d+) texts", said))
    return {
        "whole": first_step - begin, "prepared": first - begin, "weights": last - first, "named": named - begin,
        "step": first_step - launch, "copied": copied, "locked": locked, "others": others, "sum": copies[7], "cpu": cpu,
        "peak": usage.ru_maxrss * 1024, "texts": sum(texts),
        "between": launch - last,
    }


# ------------------------------------------------------------------------------------------ the page


def table(sides: dict) -> list:
    rows = [
        ("**start to first step**", lambda r: r["whole"], True),
        ("until the first copy to the device: config, tokenizer, rows, initial factors, and reading the first weights", lambda r: r["prepared"], False),
        ("until the last copy: reading, converting and copying weights", lambda r: r["weights"], False),
        ("until the first launch", lambda r: r["between"], False),
        ("until the first step is made: launches", lambda r: r["step"], False),
        ("in parallel: the driver reads the copied data", lambda r: r["copied"], False),
        ("in parallel: `run.lock.json` is written at", lambda r: r["named"], False),
        ("CPU seconds of all threads until the first step", lambda r: r["cpu"], False),
    ]
    names = list(sides)
    lines = ["| seconds | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for what, value, bold in rows:
        cells = [f"{statistics.median(map(value, sides[name])):.2f}" for name in names]
        lines.append(f"| {what} | " + " | ".join(f"**{cell}**" if bold else cell for cell in cells) + " |")
    for what, key in (("GB copied from locked pages", "locked"), ("GB copied from other pages", "others"), ("peak of the host's memory, GB", "peak")):
        cells = [f"{statistics.median(run[key] for run in sides[name]) / 1e9:.2f}" for name in names]
        lines.append(f"| {what} | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    options = Options(__doc__)
    options.add_argument("--program", type=Path, default=Path("target/gpu/tooltune"), help="built with CUDA")
    options.add_argument("--before", type=Path, help="an earlier program, measured alternately")
    options.add_argument("--shape", default="llama-3-8b", help="one of scripts/gpu/shapes")
    options.add_argument("--runs", type=int, default=3, help="starts per program; the medians are shown")
    options.add_argument("--folder", type=Path, default=Path("runs/bench-start"), help="folder for the model and the runs")
    options.add_argument("--no-page", action="store_true", help="only print the page")
    arguments = options.parse_args()
    page = Page("start", options.visible_arguments("--program", "--before"), PAGE)
    programs = {"now": arguments.program} | ({"before": arguments.before} if arguments.before else {})
    for program in programs.values():
        if not program.is_file():
            raise SystemExit(f"bench/start: {program} does not exist; build target/gpu/tooltune with scripts/gpu/build, or pass --program")
    programs = {name: program.resolve() for name, program in programs.items()}
    folder = (ROOT / arguments.folder).resolve()
    model = folder / arguments.shape
    shape = prepared_model(model, arguments.shape)
    environment, config = prepared_driver(folder), write_config(folder, model)
    caches = {name: folder / f"cache-{name}" for name in programs}
    sides, floors = {name: [] for name in programs}, []
    for turn in range(arguments.runs + 1):
        for name, program in programs.items():
            read_all(model)
            total, seconds = read_all(model)
            run = started(program, folder, config, environment, caches[name])
            say(f"{name}: {run['whole']:.2f} s, weights {run['weights']:.2f} s, reading only {seconds:.2f} s, {run['texts']} texts compiled")
            # The first start has no cached kernels and no preprocessed rows.
            if turn > 0:
                floors.append(seconds)
                sides[name].append(run)
    sums = {run["sum"] for runs in sides.values() for run in runs}
    if len(sums) > 1:
        raise SystemExit(f"bench/start: the programs copied different bytes: {sums}")
    text = page_text(page, arguments.shape, shape, sides, statistics.median(floors), total)
    if arguments.no_page:
        print(text)
    else:
        PAGE.write_text(text)
        say(f"written to {PAGE}")
    now = statistics.median(run["whole"] for run in sides["now"])
    if now > LIMIT:
        raise SystemExit(f"bench/start: the first step ended after {now:.1f} s, later than the limit of {LIMIT:.0f} s")


def page_text(page: Page, name: str, shape: dict, sides: dict, floor: float, total: int) -> str:
    now = {key: statistics.median(run[key] for run in sides["now"]) for key in ("whole", "weights", "locked", "others")}
    copies = [f"{total / 1e9:.1f} GB over {name} at {rate / 1e9:.0f} GB/s take {total / rate:.1f} s" for name, rate in PCIE.items()]
    others = "" if now["others"] < 1e8 else (
        f" {now['others'] / 1e9:.1f} GB are in pages that are not locked, which a driver copies once more.")
    lines = [
        *page.head("Cold start", output_of(["rustc", "--version"])), "",
        f"Seconds from the start of `tooltune train` to the end of its first step, with {name}'s shape "
        f"({shape['num_hidden_layers']} layers, {total / 1e9:.1f} GB of bf16 in safetensors, in the page cache), on a driver without a GPU; "
        f"medians of {len(sides['now'])} starts, with kernels cached by an earlier start. A single thread reads the files in {floor:.2f} s.",
        "", *table(sides), "",
        f"All starts copied the same bytes to the device; the exclusive or of their 64-bit words is {sides['now'][0]['sum']}. "
        "`run.lock.json` needs the SHA-256 of all files; if it is written before the first step, hashing is part of the "
        "copies' line. Here the driver's work is part of the host's time, unlike on a GPU: it reads each byte that is copied to the device. "
        "NVRTC's compilation at the very first start and the GPU's own time are not included.", "",
        f"A forecast for a GPU: {'; '.join(copies)}, while the host reads the next bytes.{others} "
        f"With the host's {now['whole']:.1f} s the first step would end after at most "
        f"{now['whole'] + total / min(PCIE.values()):.1f} s, even without any overlap.", "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
