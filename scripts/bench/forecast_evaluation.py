"""The section of benchmarks/forecast.md on evaluations during a run: how long one takes, and its share of the run.

Settings come from a config, and prompts and answers have the lengths of its rows. The script simulates how rows join and leave a
batch in trainer/src/eval/generate/batch.rs. The launches of prompts and of a token are counted in scripts/gpu/launches.json.
"""

import collections
import math
import tomllib

import forecast_rates as rates
from forecast_rates import GPUS, LORA
from forecast_work import kernel_of, kind_of, product_of, product_work, read_shape, total, works
from launches import HOST_CALLS, Generation, Step, name_of
from machine import ROOT

# Tokens per pass over prompts, or over rows whose loss is measured: PREFILL_TOKENS in trainer/src/models/kv_cache.rs.
PREFILL_TOKENS = 2048
# Host calls per layer for moving the kept part of the cache: two empty halves, and two parts sliced, selected and
# written.
MOVING_CALLS = 8
# Host calls for the inputs of a recorded token: ids, columns, cosines and sines.
WRITES = 4

# The config; its shape; training rows and their mean tokens; tokens per prompt; consecutive completions per sample;
# completion length at each tenth of the completions, sorted; number of sequences in the counted batch.
#
# SLOT lengths are from `tooltune data synth slot --rows 400` with slot_prompt = "paper", as counted by `tooltune plan`
# and `tooltune data stats` with SmolLM2's tokenizer; the number of rows is the paper's. GOAT lengths are from `tooltune
# data synth goat --rows 200`: an example of a trajectory is its plan, one of its calls (2.1 on average) or its answer;
# 3,000 trajectories.
Recipe = collections.namedtuple("Recipe", "config shape rows row_tokens prompt texts answers documents")
RECIPES = [
    Recipe("goat-llama3-8b", "llama-3-8b", 12460, 310, 280, 4.15, [7, 12, 16, 19, 23, 26, 29, 33, 40, 50, 90], 50),
    Recipe("slot-llama3.2-1b", "llama-3.2-1b", 126000, 290, 246, 1, [13, 28, 33, 37, 40, 43, 46, 49, 54, 60, 80], 64),
]
MOST = 0.10
# GPU_BOUND_RATIO of kernels/src/recording.rs.
OF_THE_GPU = 1.03

# Work of a batch: prompts that join the kept rows, or one token for a number of rows and columns.
Join = collections.namedtuple("Join", "tokens prompts kept")
Token = collections.namedtuple("Token", "rows columns is_recording")


def settings_of(config: str) -> dict:
    with (ROOT / f"configs/{config}.toml").open("rb") as file:
        return tomllib.load(file)


def answer_tokens(answers: list, i: int, n: int) -> int:
    """Length of completion `i` of `n`: interpolated between the given lengths, in shuffled order."""
    place = (i * 0.6180339887) % 1.0 * (len(answers) - 1)
    low = int(place)
    return round(answers[low] + (answers[min(low + 1, len(answers) - 1)] - answers[low]) * (place - low))


def played(prompt: int, answers: list, n: int, eval_settings: dict) -> list:
    """The joins and tokens of `n` prompts."""
    batch, most = eval_settings["batch_size"], eval_settings.get("kv_cache_tokens")
    room = prompt + eval_settings["max_new_tokens"]
    queue = [answer_tokens(answers, i, n) for i in range(n)]
    rows, done = [], []
    columns, is_new = 0, False
    while True:
        live = [row for row in rows if row > 0]
        if 4 * len(live) <= 3 * len(rows):
            fits = max(1, min(batch, most // room if most else batch))
            joining = [queue.pop(0) for _ in range(min(fits - len(live), len(queue)))]
            if not live and not joining:
                return done
            rows = live + joining
            is_new = True
            if joining:
                done.append(Join(prompt * len(joining), len(joining), len(live)))
                columns = prompt if not live else columns
                rows = live + [left - 1 for left in joining]
                continue
            done.append(Join(0, 0, len(live)))
        columns += 1
        done.append(Token(len(rows), columns, is_new))
        is_new = False
        rows = [left - 1 for left in rows]


def scaled(rows: dict, layers: int, factor: float, passes: float = 1.0) -> list:
    """(kernel or product, launches, threads) of a whole model: `passes` times the counted passes, with `factor` times the rows."""
    found = []
    for name, row in rows.items():
        launches, threads = (n * passes for n in total(row, layers))
        what, _, of = name.partition(" ")
        if what == "product":
            product = product_of(of)
            # In products after the last prompt token, the rows are sequences.
            found.append((product._replace(rows=max(1, round(product.rows * factor))), launches, 0))
        elif name != HOST_CALLS:
            found.append((of, launches, threads * factor))
    return found


def seconds(work: list, shape, gpu, attended: float) -> float:
    """GPU seconds: each kernel takes the time of its bytes or operations, at least the time of the shortest kernel, plus
    a gap. Attention reads `attended` cache bytes per layer, or is negligible compared with the prompts' matmuls."""
    rate, bandwidth = gpu.tflops * gpu.products.share * 1e12, gpu.gbs * gpu.memory.share * 1e9
    least, all_seconds = rates.SHORTEST_US / 1e6, 0.0
    for what, launches, threads in work:
        if not launches:
            continue
        if isinstance(what, str):
            n_bytes = attended * launches if what.startswith("attend_to_run") else 0.0 if what.startswith("attend") else kernel_of(what).bytes(threads, shape)
            each = n_bytes / bandwidth / launches
        else:
            flops, n_bytes = product_work(what)
            speed = gpu.gbs * gpu.adapters.share * 1e9 if kind_of(what, shape) == LORA else bandwidth
            each = max(flops / rate, n_bytes / speed)
        all_seconds += launches * (max(each, least) + rates.GAP_US / 1e6)
    return all_seconds


class Evaluation:
    """Seconds of an evaluation of a recipe on a GPU."""

    def __init__(self, table: dict, recipe: Recipe, gpu, eval_settings: dict, is_recorded: bool = True):
        self.recipe, self.gpu, self.settings, self.is_recorded = recipe, gpu, eval_settings, is_recorded
        self.shape = read_shape(recipe.shape)
        rows_of = lambda part: table[name_of(Generation(recipe.shape, recipe.documents, recipe.prompt, part))][0]
        self.prompt_rows, self.token_rows = rows_of("prompts"), rows_of("a token")
        self.host_calls = total(self.token_rows[HOST_CALLS], 2)[0]
        self.known = {}

    def launches(self, rows: dict) -> int:
        return sum(total(row, self.shape.layers)[0] for name, row in rows.items() if name != HOST_CALLS)

    def token(self, rows: int, columns: int) -> tuple:
        """Whether a token of all rows is recorded, and its seconds: limited by the GPU, or by the host's launches."""
        key = (rows, columns // 64)
        if key not in self.known:
            cache = 2 * 2 * rows * columns * self.shape.kv_heads * self.shape.head_dim
            work = scaled(self.token_rows, self.shape.layers, rows / self.recipe.documents)
            gpu = seconds(work, self.shape, self.gpu, cache)
            host = (self.host_calls + WRITES) * rates.HOST_US / 1e6
            own = self.launches(self.token_rows) * rates.HOST_US / 1e6
            recorded, plain = gpu + host, max(gpu, own) + WRITES * rates.HOST_US / 1e6
            # If the GPU takes longer than the host, nothing is recorded.
            is_recorded = self.is_recorded and gpu < OF_THE_GPU * own
            self.known[key] = (is_recorded, (recorded if is_recorded else plain) + rates.READ_US / 1e6)
        return self.known[key]

    def passes(self, tokens: int) -> float:
        """Seconds of prompts with this number of tokens: each pass is limited by the GPU or by the host's launches."""
        of_pass = PREFILL_TOKENS // self.recipe.prompt * self.recipe.prompt
        counted = self.recipe.documents * self.recipe.prompt
        n, counted_passes = math.ceil(tokens / of_pass), math.ceil(counted / of_pass)
        passes = n / counted_passes
        work = scaled(self.prompt_rows, self.shape.layers, tokens / counted / passes, passes)
        gpu = seconds(work, self.shape, self.gpu, 0.0)
        host = passes * self.launches(self.prompt_rows) * rates.HOST_US / 1e6
        return max(gpu, host)

    def parts(self) -> dict:
        """{part: seconds}"""
        recipe, n = self.recipe, self.settings["max_samples"]
        found = collections.Counter()
        found["loss"] = self.passes(n * recipe.row_tokens)
        rounds = [n] * int(recipe.texts) + [round(n * (recipe.texts % 1))]
        a_launch = rates.HOST_US / 1e6
        for texts in rounds:
            for event in played(recipe.prompt, recipe.answers, texts, self.settings):
                if isinstance(event, Join):
                    found["prompts"] += self.passes(event.tokens) if event.tokens else 0.0
                    found["prompts"] += MOVING_CALLS * self.shape.layers * a_launch if event.kept else 0.0
                else:
                    is_recorded, own = self.token(event.rows, event.columns)
                    found["tokens"] += own
                    # Runs once normally and once as a recording.
                    if is_recorded and event.is_recording:
                        found["recording"] += 2 * self.launches(self.token_rows) * a_launch
        return found


def step_seconds(table: dict, recipe: Recipe, config: dict, gpu) -> float:
    """Seconds of an optimizer step: its micro-batches are queued without waiting."""
    train = config["train"]
    step = Step(recipe.shape, train["per_device_train_batch_size"], recipe.row_tokens, config["lora"]["lora_dropout"], "kept")
    of_classes = works(step, table[name_of(step)][0], read_shape(recipe.shape), gpu)
    return train.get("gradient_accumulation_steps", 1) * sum(work.ms for work in of_classes.values()) / 1e3


def run_of(recipe: Recipe, config: dict) -> tuple:
    """Number of steps and evaluations of the run."""
    train = config["train"]
    examples = train["per_device_train_batch_size"] * train.get("gradient_accumulation_steps", 1)
    steps = math.ceil(recipe.rows / examples) * train["num_train_epochs"]
    return steps, math.ceil(steps / config["eval"]["eval_steps"])


def fits_on(recipe: Recipe, gpu) -> bool:
    """Whether weights, a step and a cache fit; Llama-3-8B does not fit in 24 GiB (see the first table)."""
    return recipe.shape != "llama-3-8b" or gpu.gib > 30


def section(table: dict) -> list:
    lines = [
        "## Evaluations within a run",
        "",
        f"Evaluations should take at most {MOST:.0%} of a run. Settings come from the configs, and lengths of rows and answers from "
        "`scripts/bench/forecast_evaluation.py`. Decoding is greedy, as in the configs. "
        "The launches of a token are recorded once per batch as a CUDA graph and replayed by one call if the host needs longer for them than the GPU; "
        "weights and cache are read once per token. "
        f"A kernel takes at least {rates.SHORTEST_US:g} µs, and the host reads the chosen token in {rates.READ_US:g} µs.",
        "",
        "| config | GPU | batch | steps | evaluations | s per step | s per evaluation | prompts, tokens, recording, loss | share of the run | without graphs |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    worst = 0.0
    for recipe in RECIPES:
        config = settings_of(recipe.config)
        steps, evaluations = run_of(recipe, config)
        for gpu in GPUS:
            if not fits_on(recipe, gpu):
                continue
            a_step = step_seconds(table, recipe, config, gpu)
            parts = Evaluation(table, recipe, gpu, config["eval"]).parts()
            own = sum(parts.values())
            plain = sum(Evaluation(table, recipe, gpu, config["eval"], False).parts().values())
            share, share_plain = (evaluations * n / (evaluations * n + steps * a_step) for n in (own, plain))
            worst = max(worst, share)
            shown = ", ".join(f"{parts[part]:.1f}" for part in ("prompts", "tokens", "recording", "loss"))
            counts = f"{config['eval']['batch_size']} | {steps:,} | {evaluations}"
            lines.append(f"| {recipe.config} | {gpu.name} | {counts} | {a_step:.3f} | {own:.1f} | {shown} | {share:.1%} | {share_plain:.1%} |")
    lines += ["", *a_token(table), ""]
    if worst > MOST:
        raise SystemExit(f"forecast: an evaluation takes {worst:.1%} of a run, more than {MOST:.0%}; change its settings in configs/, or the launches of a token")
    lines.append(
        "Not included: scoring, encoders, grammar masks (made by the host while the GPU waits), and a retriever's ranking. "
        "With a temperature, the host reads the logits, 4 bytes per vocabulary entry and row, and draws each token."
    )
    return lines


def a_token(table: dict) -> list:
    """Launches and time of a token."""
    lines = [
        "Milliseconds per token of all rows, recorded / launched kernel by kernel:",
        "",
        "| shape | rows | kernels per layer | products per layer | total | host calls, recorded | " + " | ".join(gpu.name for gpu in GPUS) + " |",
        "|---|--:|--:|--:|--:|--:|" + "--:|" * len(GPUS),
    ]
    for recipe in RECIPES:
        one = Evaluation(table, recipe, GPUS[0], {})
        found = one.token_rows
        layer = [sum(row.layer_launches for name, row in found.items() if name.startswith(kind)) for kind in ("kernel", "product")]
        for rows in (1, 8, recipe.documents):
            cells = []
            for gpu in GPUS:
                evaluations = [Evaluation(table, recipe, gpu, {}, is_recorded) for is_recorded in (True, False)]
                ms = [1e3 * evaluation.token(rows, recipe.prompt + recipe.answers[5])[1] for evaluation in evaluations]
                fits = fits_on(recipe, gpu)
                cells.append(" / ".join(f"{n:.1f}" for n in ms) if fits else "does not fit")
            lines.append(f"| {recipe.shape} | {rows} | {layer[0]} | {layer[1]} | {one.launches(found):,} | {one.host_calls} | " + " | ".join(cells) + " |")
    return lines
