#!/usr/bin/env python3
"""Measures requests per second of the data pipelines' client and of Python clients, and writes benchmarks/pipelines.md; started by
scripts/bench/pipelines.

All sides send the same prompts to the same local server, which has a known service time, with the same concurrency. The
rate is the number of requests over the time from the first request to the last reply. Rounds alternate; the table has
medians.
"""

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

from machine import ROOT, output_of, package_versions, peak_rss_of, say
from page import Options, Page

DIR = Path("runs/bench-pipelines")
SIDES = {
    "alone": "tooltune",
    "journal": "tooltune, with its journal",
    "aiohttp": "aiohttp",
    "openai": "openai",
}
HEAD = [
    "| service time, ms | limit, requests/s | side | requests/s (minimum to maximum) | client CPU time, ms per request | peak RSS, MiB |",
    "|--:|--:|---|--:|--:|--:|",
]


@contextlib.contextmanager
def server(seconds: float):
    """The address of a server."""
    command = [sys.executable, "scripts/bench/pipelines_server.py", str(seconds)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
    finally:
        process.terminate()
        process.wait()


def measured(arguments, side: str, url: str) -> dict:
    common = [url, str(arguments.concurrency), str(arguments.requests)]
    if side in ("aiohttp", "openai"):
        command = [arguments.python, "scripts/bench/pipelines_peer.py", side, *common]
    else:
        command = [arguments.throughput, *common]
    folder = ROOT / DIR / "journal"
    shutil.rmtree(folder, ignore_errors=True)
    if side == "journal":
        command.append(str(folder))
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)} exited with status {process.returncode}")
    said = json.loads(text)
    if said["n_replies"] != arguments.requests:
        raise SystemExit(f"{side} received {said['n_replies']} replies to {arguments.requests} requests")
    spent = usage.ru_utime + usage.ru_stime
    return {"rate": arguments.requests / said["seconds"], "spent": spent * 1000 / arguments.requests, "rss": peak_rss_of(usage)}


def main() -> None:
    options = Options(__doc__, wrapper=("--throughput", "--python"))
    options.add_argument("--concurrency", type=int, default=64, help="concurrent requests (64)")
    options.add_argument("--requests", type=int, default=6400)
    options.add_argument("--service", type=float, nargs="+", default=[100, 20], help="service time of the server in milliseconds (100 20)")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--output", default="benchmarks/pipelines.md")
    arguments = options.parse_args()
    (ROOT / DIR).mkdir(parents=True, exist_ok=True)
    page = Page("pipelines", options.visible_arguments(), arguments.output)
    lines = []
    for milliseconds in arguments.service:
        runs = {side: [] for side in SIDES}
        with server(milliseconds / 1000) as url:
            for number in range(arguments.rounds):
                say(f"{milliseconds:g} ms, round {number + 1}")
                for side, found in runs.items():
                    found.append(measured(arguments, side, url))
        for side, found in runs.items():
            rates = [run["rate"] for run in found]
            cells = [f"{milliseconds:g}", f"{arguments.concurrency * 1000 / milliseconds:,.0f}", SIDES[side],
                     f"{statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})",
                     f"{statistics.median(run['spent'] for run in found):.2f}",
                     f"{max(run['rss'] for run in found) / (1 << 20):,.0f}"]
            lines.append("| " + " | ".join(cells) + " |")
    packages = f"{package_versions(arguments.python, 'aiohttp openai')}; {output_of(['rustc', '--version'])}"
    page.write([
        *page.head("Requests of the data pipelines compared with Python's clients", packages),
        f"- {arguments.requests:,} requests of 1.8 KB to a local server in another process, {arguments.concurrency} concurrently, "
        f"{arguments.rounds} alternating rounds; medians",
        "",
        *HEAD,
        *lines,
        "",
        "The limit is what a server with this response time and concurrency can answer per second; client, system and server add the rest. "
        "The journal has every reply on disk before it is used.",
    ])


if __name__ == "__main__":
    main()
