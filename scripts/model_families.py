"""Model families for other scripts: the families of the program, and the tiny models of tests/fixtures/models."""

import json
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODELS = ROOT / "tests/fixtures/models"
# Architectures of llama.cpp that rotate adjacent elements: convert_hf_to_gguf.py alternates the rows of a head's halves.
PERMUTED = {"llama", "granite", "smollm3", "mistral3"}


def families() -> dict:
    """Each family of the program by `model_type`: `models`, `architecture` in GGUF, and whether GGUF files of that
    architecture are read as this family (`reads_architecture`)."""
    command = "cargo run --release --quiet -p tooltune-checkpoints --example families"
    printed = subprocess.run(command.split(), cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    return {family.pop("model_type"): family for family in json.loads(printed)}


def config(name: str) -> dict:
    """The config.json of a tiny model."""
    path = MODELS / name / "config.json"
    if not path.exists():
        raise SystemExit(f"{path}: no such file; write the config of the tiny model first, like {MODELS}/olmo3/config.json")
    return json.loads(path.read_text(encoding="utf-8"))


def configs() -> dict:
    """The config.json of each tiny model, by the name of its folder."""
    return {path.parent.name: config(path.parent.name) for path in sorted(MODELS.glob("*/config.json"))}


def model_types() -> list:
    """The `model_type` of each family, Llama first."""
    return sorted({config["model_type"] for config in configs().values()}, key=lambda name: (name != "llama", name))


def supported_config(name: str) -> dict:
    """The config of a tiny model without the fields that llama.cpp does not support in its family."""
    path = MODELS / name / "unsupported_by_llama_cpp.json"
    fields = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    merged = config(name)
    for values in fields.values():
        merged |= values
    return merged
