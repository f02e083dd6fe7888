"""The scenarios of scripts/faults: small folders, and the commands that are interrupted in them."""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Step:
    """A command that prepares a scenario."""

    words: list[str]
    # SIGTERM is sent at the N-th write to a file of this name.
    signal_at: tuple[str, int] | None = None
    status: int = 0


@dataclass(frozen=True)
class Scenario:
    """A command whose file calls fail."""

    name: str
    what: str
    command: list[str]
    setup: list[Step] = field(default_factory=list)
    config: str = ""
    # The command to run afterwards; by default the same one.
    again: list[str] | None = None
    # Output of the command that is compared, below the folder; None compares everything.
    result: str | None = None
    # Whether the output exists before it is complete, like the folder of a run or an evaluation.
    grows: bool = False
    # Prefixes of ignored names.
    passed_over: tuple[str, ...] = ()
    # How often the fault occurs before the command may succeed.
    times: int = 1
    # Whether read calls also fail; a report omits unreadable files with a message.
    reads: bool = True
    # Expected exit status of the command.
    status: int = 0

    @property
    def recover(self) -> list[str]:
        return self.again or self.command

    def write_files(self, place: Path, root: Path) -> None:
        for name in ["tiny_chat_model", "retriever/model"]:
            copy = place / "models" / name.replace("/", "-")
            shutil.copytree(root / "tests/fixtures" / name, copy)
        slot = [{"input_text": f"{word} boats at noon.", "json_schema": SCHEMA, "gold": {"n": n}} for n, word in enumerate(WORDS)]
        pairs = [{"query": f"get a {word} in riga", "positive": f"{word} of a city. parameters: city riga"} for word in WORDS]
        for name, rows in [("train", slot), ("dev", slot[:2]), ("pairs", pairs), ("pairs-dev", pairs[3:])]:
            (place / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        if self.config:
            (place / "config.toml").write_text(self.config)


WORDS = ["no", "one", "two", "three", "four", "five", "six", "seven"]
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}

MODEL = """
[model]
model_name_or_path = "models/tiny_chat_model"
[lora]
r = 2
lora_alpha = 4
lora_dropout = 0.05
"""

CHECKPOINT = """
[checkpoint]
save_steps = 2
save_total_limit = {limit}
[log]
report_to = ["jsonl"]
"""


def slot(limit: int, more: str = "", better: str = "false") -> str:
    return f"""{MODEL}
[data]
train = ["train.jsonl"]
eval = ["dev.jsonl"]
format = "slot"
[train]
output_dir = "run"
max_steps = 6
per_device_train_batch_size = 2
learning_rate = 1e-2
logging_steps = 1
[eval]
eval_steps = 3
suites = ["slot"]
max_new_tokens = 4
encoder = "models/retriever-model"
metric_for_best_model = "loss"
greater_is_better = {better}
{more}
{CHECKPOINT.format(limit=limit)}
"""


RETRIEVER = f"""
[retriever]
model_name_or_path = "models/retriever-model"
train = ["pairs.jsonl"]
eval = ["pairs-dev.jsonl"]
max_steps = 4
per_device_train_batch_size = 4
learning_rate = 1e-2
compute_dtype = "f32"
[train]
output_dir = "run"
logging_steps = 2
[eval]
eval_steps = 2
{CHECKPOINT.format(limit=1)}
"""

JOINT = f"""{MODEL}
[data]
train = ["goat/train.jsonl"]
eval = ["goat/dev.jsonl"]
format = "goat"
max_length = 8192
[goat]
documents = "goat/documents.jsonl"
[retriever]
model_name_or_path = "models/retriever-model"
train = "trajectories"
max_steps = 4
per_device_train_batch_size = 8
learning_rate = 1e-2
[train]
output_dir = "run"
max_steps = 4
per_device_train_batch_size = 2
logging_steps = 1
[eval]
eval_steps = 2
suites = ["goat", "retrieval"]
max_samples = 1
max_new_tokens = 4
metric_for_best_model = "retrieval.recall_at_5"
{CHECKPOINT.format(limit=2)}
"""

TRAIN = ["train", "config.toml"]
TRAINED = [Step(TRAIN)]
GOAT = [
    Step("data synth goat --rows 8 --output goat/train.jsonl --documents goat/documents.jsonl".split()),
    Step("data synth goat --split dev --rows 2 --output goat/dev.jsonl".split()),
]


def export(form: str, config: str, output: str = "exported", more: str = "") -> Scenario:
    words = f"export run --checkpoint last --to {form} --output {output} {more}".split()
    return Scenario(f"export-{form}", f"an export as {form}", words, TRAINED, config, result=output)


SCENARIOS = [
    Scenario("slot", "a SLOT run that keeps two checkpoints", TRAIN, config=slot(2)),
    Scenario("slot-limit-1", "a SLOT run whose best checkpoint changes, with save_total_limit = 1", TRAIN, config=slot(1)),
    Scenario(
        "views",
        "a SLOT run with TensorBoard curves, whose faults never stop it",
        TRAIN,
        config=slot(2).replace('["jsonl"]', '["tensorboard"]'),
        passed_over=("run/tb",),
    ),
    Scenario("slot-best-stays", "a SLOT run whose first checkpoint stays the best", TRAIN, config=slot(1, better="true")),
    Scenario(
        "replaced",
        "resumes a run that SIGTERM ended during an evaluation; two faults while that checkpoint is replaced",
        TRAIN,
        # The third line of metrics is step 2, before the evaluation of step 3; the fourth is step 3.
        [Step(TRAIN, signal_at=("metrics.jsonl", 4), status=75)],
        slot(2, "early_stopping_patience = 2"),
        times=2,
    ),
    Scenario(
        "older",
        "resumes a run from an older checkpoint",
        [*TRAIN, "--resume", "run/checkpoint-000002"],
        TRAINED,
        slot(9),
    ),
    Scenario(
        "older-plain",
        "resumes a run from an older checkpoint, and after a fault from its current state",
        [*TRAIN, "--resume", "run/checkpoint-000002"],
        TRAINED,
        slot(9),
        again=TRAIN,
        passed_over=("run/aside-",),
    ),
    Scenario("retriever", "a retriever run", TRAIN, config=RETRIEVER),
    Scenario("joint", "a GOAT run of a model and a retriever", TRAIN, GOAT, JOINT),
    Scenario(
        "eval", "an evaluation", "eval run --checkpoint last --output found".split(), TRAINED, slot(2), result="found", grows=True
    ),
    Scenario(
        "select",
        "a selection by another metric, measured again",
        "select run --evaluate --metric slot.parse_rate".split(),
        TRAINED,
        slot(2),
    ),
    export("peft", slot(2)),
    export("merged", slot(2), more="--max-shard-size 0.00005"),
    export("gguf", slot(2), "exported.gguf"),
    export("sentence-transformers", RETRIEVER),
    Scenario("report", "a report", "report run --output report.html".split(), TRAINED, slot(2), result="report.html", reads=False),
    Scenario(
        "generate", "completions in a file", "generate run --checkpoint last --output texts.jsonl".split(), TRAINED, slot(2), result="texts.jsonl"
    ),
    Scenario(
        "synth", "synthetic rows", "data synth slot --rows 20 --output made/rows.jsonl".split(), result="made/rows.jsonl"
    ),
    Scenario(
        "data-slot",
        "rows written by a model",
        "data slot --output written --rows 4 --model config.toml --checkpoint base --reply-tokens 8 --set eval.batch_size=2".split(),
        config=slot(2),
        result="written",
        grows=True,
        # The model's weights are random, and a stage without a readable reply is an error.
        status=1,
    ),
    Scenario(
        "record",
        "an evaluation of agents with recorded calls",
        ["eval", "config.toml", "--checkpoint", "base", "--suite", "goat", "--output", "found", "--set",
         "goat.executor={ kind = \"synthetic\", record = \"found.replay.jsonl\" }"],
        GOAT,
        JOINT,
        result="found",
        grows=True,
    ),
    Scenario("init", "a starter config", "init --preset slot --output fresh.toml".split(), result="fresh.toml"),
]
