"""Shared code of the benchmarks: processes with a given number of threads, and the machine, commit and versions for their pages.

Standard library only. A `Worker` is a process that prints one JSON line for each input line and sleeps in between, so
that several of them can be measured alternately without disturbing each other.
"""

import datetime
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20


def say(text: str) -> None:
    print(f"{datetime.datetime.now():%H:%M:%S} {text}", flush=True)


def environment(threads: int, preload: str) -> dict:
    # OpenMP's default wait policy: threads spin for a few milliseconds after a task, which PyTorch's small operations
    # need, and then sleep, which the next side needs.
    count = str(threads)
    extra = {
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "RAYON_NUM_THREADS": count,
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        # Inductor compiles for a fixed number of threads.
        "TORCHINDUCTOR_CACHE_DIR": str(ROOT / f"runs/bench-inductor/{threads}-threads"),
    }
    if preload:
        extra["LD_PRELOAD"] = preload
    return os.environ | extra


def failure(command: list, status: int, log: Path) -> SystemExit:
    tail = log.read_text(errors="replace")[-2000:]
    return SystemExit(f"{shlex.join(map(str, command))}\nexited with status {status}:\n{tail}")


def peak_rss_of(usage) -> int:
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def run_process(command: list, threads: int, preload: str, log: Path) -> int:
    """Runs the command and returns its peak RSS in bytes; on failure prints the end of the log and stops."""
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment(threads, preload), stdout=sink, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise failure(command, process.returncode, log)
    return peak_rss_of(usage)


class Worker:
    """A process that prints one JSON line per input line; its standard error is written to `log`."""

    def __init__(self, command: list, threads: int, preload: str, log: Path):
        self.command, self.log = command, log
        with log.open("wb") as sink:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment(threads, preload), text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sink,
            )

    def ask(self, request: str) -> dict:
        try:
            self.process.stdin.write(request + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self.process.wait()
            say(f"no answer to {request!r}")
            raise failure(self.command, self.process.returncode, self.log)
        try:
            return json.loads(answer)
        except json.JSONDecodeError as error:
            raise SystemExit(f"{shlex.join(map(str, self.command))}\nreplied to {request!r} with {answer!r}: {error}")

    def close(self) -> int:
        """Ends the process and returns its peak RSS in bytes."""
        self.process.stdin.close()
        _, status, usage = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        self.process.stdout.close()
        if self.process.returncode != 0:
            raise failure(self.command, self.process.returncode, self.log)
        return peak_rss_of(usage)


def mkl_preload(folder: Path) -> str:
    """Makes MKL use its AVX-512 kernels on AMD by reporting an Intel processor: twice as fast."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists() or "AuthenticAMD" not in cpuinfo.read_text():
        return ""
    source, library = folder / "mkl_avx512.c", folder / "mkl_avx512.so"
    source.write_text("int mkl_serv_intel_cpu_true(void) { return 1; }\n")
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"cannot compile {source}, without which MKL runs at half its speed here: {error}; install a C compiler")
    return str(library)


def mkl_note(preload: str) -> str:
    return "MKL with its Intel kernels enabled (by default it does not use its best kernels on AMD)" if preload else "stock MKL"


def prepared_base(python: str) -> Path:
    """The Hugging Face directory of SmolLM2, converted from the GGUF on first use."""
    base = Path("runs/bench-base")
    if not (ROOT / base / "model.safetensors").exists():
        say("converting the GGUF for transformers")
        (ROOT / base).mkdir(parents=True, exist_ok=True)
        command = [python, "-W", "ignore", "scripts/bench/peft_train.py", "--prepare", "--base", base]
        run_process(command, 1, "", ROOT / base / "prepare.log")
    return base


# ------------------------------------------------------------------------------------------ what was measured


def output_of(command: list) -> str:
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def cpu_name() -> str:
    """Processor name with family and model if known, because virtual machines may use the same name for different processors."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    fields = dict(re.findall(r"^(model name|cpu family|model)\s*: (.*)", text, re.MULTILINE))
    name = fields.get("model name") or platform.processor() or platform.machine()
    kind = [f"{word} {fields[key]}" for word, key in (("family", "cpu family"), ("model", "model")) if key in fields]
    return f"{name} ({', '.join(kind)})" if kind else name


def commit() -> str:
    dirty = "" if output_of(["git", "status", "--porcelain", "--untracked-files=no"]) == "" else ", with local changes"
    return output_of(["git", "rev-parse", "--short=12", "HEAD"]) + dirty


def package_versions(python: str, names: str) -> str:
    """Versions of the packages `names` of that Python."""
    code = f"import importlib.metadata as m; print(', '.join(n + ' ' + m.version(n) for n in '{names}'.split()))"
    return output_of([python, "-c", code])


def versions(python: str, names: str) -> str:
    """Versions of the Python packages `names`, of Burn and of rustc."""
    burn = re.search(r'name = "burn"\nversion = "([^"]+)"', (ROOT / "Cargo.lock").read_text())
    return f"{package_versions(python, names)}; burn {burn.group(1) if burn else '?'}, {output_of(['rustc', '--version'])}"
