#!/usr/bin/env python3
"""Trains a tiny model alone and under several launchers, and compares the runs byte for byte.

A run consists of commands, one per simulated host. The launchers whose programs are not on PyPI are
replaced by the variables that they set. Under mpiexec, MPI adds the gradients; runs are also stopped,
killed and given an invalid row there.
"""

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

MODEL = Path(__file__).resolve().parents[2] / "tests" / "fixtures" / "tiny_chat_model"
STEPS = 6
# Seconds; longer than any run here, even on a busy machine.
PATIENCE = 150
# Seconds after a failure; other hosts may wait ten minutes for a rank that never comes.
NOTICE = 20
# What rank 0 prints about the way in which gradients are added.
BY_MPI = "gradients are added by MPI (MPICH"
BY_TCP = "gradients are added by TCP connections ("
# The reference, and what every launcher must reproduce.
ALONE = "alone"
LAST = f"checkpoint-{STEPS:06}"
COMPARED = [f"{LAST}/adapter_model.safetensors", f"{LAST}/optimizer.safetensors", "metrics.jsonl"]
# Variables of a launcher that started this script would reach the ranks.
PREFIXES = ("SLURM_", "PMI_", "PMIX_", "MPI_", "OMPI_", "PET_", "SKYPILOT_", "TORCHELASTIC_", "TOOLTUNE_RANKS", "JOB")
NAMES = (
    "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT "
    "TOOLTUNE_LEADER TOOLTUNE_NODES TOOLTUNE_RUN_ID TOOLTUNE_MPI"
).split()

CONFIG = f"""device = "cpu"
[model]
model_name_or_path = "{MODEL}"
[lora]
r = 2
lora_alpha = 4
lora_dropout = 0.1
target_modules = "all-linear"
[data]
train = ["train.jsonl"]
format = "slot"
max_length = 4096
[train]
output_dir = "run"
max_steps = {STEPS}
per_device_train_batch_size = 2
gradient_accumulation_steps = 4
learning_rate = 1e-2
logging_steps = 1
[eval]
eval_strategy = "no"
[checkpoint]
save_steps = 3
"""


@dataclass
class HostCommand:
    """A command that one host runs, in its own folder if the hosts share no file system."""

    before: list[str] = field(default_factory=list)  # the launcher
    after: list[str] = field(default_factory=list)  # options of tooltune
    variables: dict[str, str] = field(default_factory=dict)
    has_own_files: bool = False


@dataclass
class Case:
    launcher: str
    description: str
    hosts: list[HostCommand]
    prints: str = BY_TCP


def free_port() -> int:
    """A port with eight free ports after it, which the ranks use."""
    for _ in range(100):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        if port + 8 < 65536 and all(is_free(port + i) for i in range(1, 9)):
            return port
    sys.exit("launchers.py: found no free port on 127.0.0.1")


def is_free(port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def torchrun_hosts(torchrun: str, n_hosts: int, n_local: int, own_files: bool) -> list[HostCommand]:
    port = str(free_port())
    return [
        HostCommand(
            before=[
                torchrun,
                *["--nnodes", str(n_hosts), "--node-rank", str(node), "--nproc-per-node", str(n_local)],
                *["--master-addr", "127.0.0.1", "--master-port", port, "--no-python"],
            ],
            has_own_files=own_files and node > 0,
        )
        for node in range(n_hosts)
    ]


def slurm_tasks(n_hosts: int, n_local: int) -> list[HostCommand]:
    """What srun sets for each task. The first host must have a name that resolves."""
    job = str(free_port())
    return [
        HostCommand(
            variables={
                "SLURM_JOB_ID": job,
                "SLURM_STEP_ID": "0",
                "SLURM_PROCID": str(node * n_local + local),
                "SLURM_LOCALID": str(local),
                "SLURM_NODEID": str(node),
                "SLURM_NNODES": str(n_hosts),
                "SLURM_NTASKS": str(n_hosts * n_local),
                "SLURM_STEP_NUM_TASKS": str(n_hosts * n_local),
                "SLURM_STEP_TASKS_PER_NODE": f"{n_local}(x{n_hosts})",
                "SLURM_STEP_NODELIST": ",".join(["localhost", *(f"host[{i}]" for i in range(1, n_hosts))]),
            }
        )
        for node in range(n_hosts)
        for local in range(n_local)
    ]


def pods(variables_of_pod) -> list[HostCommand]:
    """Two hosts whose one process starts the ranks of its host."""
    return [HostCommand(after=["--ranks", "auto"], variables=variables_of_pod(node)) for node in range(2)]


def kubeflow(node: int, port: int) -> dict[str, str]:
    return {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "2",
        "PET_NODE_RANK": str(node),
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": str(port),
    }


def indexed_job(node: int, port: int) -> dict[str, str]:
    return {"JOB_COMPLETION_INDEX": str(node), "TOOLTUNE_NODES": "2", "TOOLTUNE_LEADER": f"127.0.0.1:{port}"}


def sky_pilot(node: int, task: str) -> dict[str, str]:
    return {
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NODE_RANK": str(node),
        "SKYPILOT_NUM_GPUS_PER_NODE": "2",
        "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.1",
        "SKYPILOT_TASK_ID": task,
    }


def cases(mpiexec: str, torchrun: str) -> list[Case]:
    own = [
        Case("ranks", f"tooltune train --ranks {n}", [HostCommand(after=["--ranks", str(n)])]) for n in (2, 3)
    ]
    library = Path(mpiexec).parent.parent / "lib"

    def under_mpiexec(n: int, **variables: str) -> list[HostCommand]:
        return [HostCommand(before=[mpiexec, "-n", str(n)], variables=variables)]

    mpi = [
        Case("mpiexec", "mpiexec -n 2", under_mpiexec(2), BY_MPI),
        Case("mpiexec", "mpiexec -n 4", under_mpiexec(4), BY_MPI),
        Case("mpiexec", "mpiexec, TOOLTUNE_MPI=0", under_mpiexec(2, TOOLTUNE_MPI="0"), f"{BY_TCP}TOOLTUNE_MPI=0)"),
        Case(
            "mpiexec",
            "mpiexec, a library with another ABI",
            under_mpiexec(2, TOOLTUNE_MPI=str(library / "libmpi.so.12")),
            "other MPI libraries have another ABI)",
        ),
    ]
    torch = [
        Case("torchrun", "torchrun --nproc-per-node 2", torchrun_hosts(torchrun, 1, 2, False)),
        Case("torchrun", "torchrun, 2 nodes of 1", torchrun_hosts(torchrun, 2, 1, False)),
        Case("torchrun", "torchrun, 2 nodes of 2, separate files", torchrun_hosts(torchrun, 2, 2, True)),
    ]
    job, trainer, task = free_port(), free_port(), f"task-{time.time_ns()}"
    variables = [
        Case("slurm", "srun variables, 1 host of 2", slurm_tasks(1, 2)),
        Case("slurm", "srun variables, 2 hosts of 1", slurm_tasks(2, 1)),
        Case("slurm", "srun variables, 2 hosts of 2", slurm_tasks(2, 2)),
        Case("kubeflow", "Kubeflow Trainer variables, 2 pods of 2", pods(lambda node: kubeflow(node, trainer))),
        Case("job", "indexed Job variables, 2 pods of 1", pods(lambda node: indexed_job(node, job))),
        Case("skypilot", "SkyPilot variables, 2 hosts of 2", pods(lambda node: sky_pilot(node, task))),
    ]
    return own + mpi + torch + variables


def environment(variables: dict[str, str]) -> dict[str, str]:
    inherited = {
        name: value for name, value in os.environ.items() if name not in NAMES and not name.startswith(PREFIXES)
    }
    # `--ranks auto` counts GPUs; here a host without a number in its variables has one rank.
    return inherited | {"CUDA_VISIBLE_DEVICES": "", "RUST_LOG": "warn"} | variables


def run(program: str, folder: Path, name: str, hosts: list[HostCommand]) -> str | None:
    """Runs the commands of all hosts at once; returns the first error."""
    processes = []
    try:
        for i, host in enumerate(hosts):
            work = folder
            if host.has_own_files:
                work = folder / f"{name}-host-{i}"
                work.mkdir()
                for file in ("train.jsonl", "config.toml"):
                    shutil.copy(folder / file, work)
            output = folder / f"{name}-{i}.log"
            train = [program, "train", "config.toml", "--set", f'train.output_dir="{name}"']
            command = [*host.before, *train, *host.after]
            with output.open("wb") as log:
                process = subprocess.Popen(
                    command, cwd=work, env=environment(host.variables), stdin=subprocess.DEVNULL,
                    stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
            processes.append((process, output))
        deadline = time.monotonic() + PATIENCE
        error = None
        while any(process.poll() is None for process, _ in processes):
            if time.monotonic() > deadline:
                outputs = "\n".join(tail(output) for _, output in processes)
                return error or f"no end after {PATIENCE} s\n{outputs}"
            if error is None and (error := first_error(processes)):
                deadline = min(deadline, time.monotonic() + NOTICE)
            time.sleep(0.1)
        return error or first_error(processes)
    finally:
        for process, _ in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def first_error(processes: list[tuple[subprocess.Popen, Path]]) -> str | None:
    for process, output in processes:
        if process.returncode not in (None, 0):
            return f"exit status {process.returncode}\n{tail(output)}"
    return None


def tail(output: Path) -> str:
    lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(f"    {line}" for line in lines[-12:])


def differences(folder: Path, name: str) -> list[str]:
    return [
        file
        for file in COMPARED
        if not (folder / name / file).is_file()
        or (folder / name / file).read_bytes() != (folder / ALONE / file).read_bytes()
    ]


def steps_of(run: Path) -> int:
    timing = run / "timing.jsonl"
    return timing.read_bytes().count(b"\n") if timing.is_file() else 0


def ranks_below(process: int) -> dict[int, int]:
    """Process IDs of the ranks that mpiexec started, by rank."""
    found, parents = {}, {process}
    for stat in sorted(Path("/proc").glob("[0-9]*/stat"), key=lambda path: int(path.parent.name)):
        try:
            own, parent = int(stat.parent.name), int(stat.read_text().rsplit(")", 1)[1].split()[1])
            variables = (stat.parent / "environ").read_bytes().split(b"\0")
        except (OSError, IndexError):
            continue
        if parent in parents:
            parents.add(own)
            ranks = [int(value[9:]) for value in variables if value.startswith(b"PMI_RANK=")]
            found |= {rank: own for rank in ranks}
    return found


def stopped_run(program: str, folder: Path, mpiexec: str, name: str, number: int, victim: int | None) -> tuple[int, str]:
    """Sends a signal to rank `victim`, or to mpiexec, after the second step; returns exit status and output."""
    output = folder / f"{name}.log"
    settings = [f'train.output_dir="{name}"', "train.max_steps=400", "ranks.silence_seconds=6"]
    command = [mpiexec, "-n", "3", program, "train", "config.toml"]
    command += [part for setting in settings for part in ("--set", setting)]
    with output.open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment({}), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + PATIENCE
        while steps_of(folder / name) < 2 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(process.pid if victim is None else ranks_below(process.pid)[victim], number)
        status = process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        return -1, f"no end after {PATIENCE} s\n{tail(output)}"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return status, tail(output)


def mpi_faults(program: str, folder: Path, mpiexec: str, width: int) -> list[str]:
    """Stops runs in which MPI adds the gradients; returns the descriptions of those that end otherwise than expected."""
    cases = [
        ("SIGTERM to mpiexec", signal.SIGTERM, None, {75}, "saved"),
        ("SIGTERM to rank 1", signal.SIGTERM, 1, {75}, "saved"),
        # mpiexec kills the stopped rank, and returns its status or that of rank 0.
        ("rank 1 is stopped (SIGSTOP)", signal.SIGSTOP, 1, {75, 9}, "saved"),
        ("rank 1 is killed", signal.SIGKILL, 1, {9}, ""),
        ("rank 0 is killed", signal.SIGKILL, 0, {9}, ""),
    ]
    failures = []
    for i, (description, number, victim, expected, text) in enumerate(cases):
        started = time.monotonic()
        status, output = stopped_run(program, folder, mpiexec, f"fault-{i}", number, victim)
        is_expected = status in expected and text in output
        wanted = " or ".join(map(str, expected))
        result = f"exit status {status}" + ("" if is_expected else f", expected {wanted} and {text!r}\n{output}")
        print(f"{description:{width}}  {time.monotonic() - started:7.1f}  {result}", flush=True)
        if not is_expected:
            failures.append(description)
    return failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--mpiexec", required=True)
    parser.add_argument("--torchrun", required=True)
    parser.add_argument("--only", default="", help="launchers, separated by commas; all by default")
    arguments = parser.parse_args()
    chosen = cases(arguments.mpiexec, arguments.torchrun)
    names = {case.launcher for case in chosen}
    only = set(filter(None, arguments.only.split(",")))
    if only - names:
        sys.exit(f"launchers.py: unknown launcher {', '.join(sorted(only - names))}; known: {', '.join(sorted(names))}")
    chosen = [case for case in chosen if not only or case.launcher in only]
    failures = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "config.toml").write_text(CONFIG, encoding="utf-8")
        rows = [arguments.program, "data", "synth", "slot", "--rows", "64", "--output", str(folder / "train.jsonl")]
        subprocess.run(rows, check=True, stdout=subprocess.DEVNULL)
        if error := run(arguments.program, folder, ALONE, [HostCommand()]):
            sys.exit(f"launchers.py: the run of one process failed: {error}")
        width = max(len(case.description) for case in chosen)
        print(f"{'run':{width}}  seconds  result", flush=True)
        for i, case in enumerate(chosen):
            started = time.monotonic()
            error = run(arguments.program, folder, f"run-{i}", case.hosts)
            seconds = time.monotonic() - started
            if not error and case.prints not in (folder / f"run-{i}-0.log").read_text(encoding="utf-8", errors="replace"):
                error = f"rank 0 does not print: {case.prints}\n{tail(folder / f'run-{i}-0.log')}"
            different = [] if error else differences(folder, f"run-{i}")
            result = "failed" if error else f"differs: {', '.join(different)}" if different else "equal"
            print(f"{case.description:{width}}  {seconds:7.1f}  {result}", flush=True)
            if error:
                print(f"  {error}", flush=True)
            if error or different:
                failures.append(case.description)
        if any(case.launcher == "mpiexec" for case in chosen):
            failures += mpi_faults(arguments.program, folder, arguments.mpiexec, width)
    if failures:
        sys.exit(f"launchers.py: runs failed, or differ from a run of one process: {', '.join(failures)}")
    print(f"launchers.py: all {len(chosen)} runs wrote the bytes of a run of one process")


if __name__ == "__main__":
    main()
