#!/usr/bin/env python3
"""Measures requests a second of the data pipelines' client and of Python's, and writes benchmarks/pipelines.md; started by
scripts/bench/pipelines.

All sides send the same prompts to the same local server, whose service time is known, so many at once; a rate is all requests over
the time from the first one to the last reply. Rounds alternate, and medians count.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

from machine import ROOT, output_of, package_versions, peak_rss_of, report_head, say, shown_arguments

DIR = Path("runs/bench-pipelines")
SIDES = {
    "alone": "tooltune",
    "journal": "tooltune, with its journal",
    "aiohttp": "aiohttp",
    "openai": "openai",
}
HEAD = [
    "| service time, ms | at most, requests/s | side | requests/s (least to most) | processor time of the client, ms a request | peak RSS, MiB |",
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
        raise SystemExit(f"{' '.join(command)} ended with status {process.returncode}")
    said = json.loads(text)
    if said["n_replies"] != arguments.requests:
        raise SystemExit(f"{side} has {said['n_replies']} replies to {arguments.requests} requests")
    spent = usage.ru_utime + usage.ru_stime
    return {"rate": arguments.requests / said["seconds"], "spent": spent * 1000 / arguments.requests, "rss": peak_rss_of(usage)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--throughput", "--python"):
        parser.add_argument(name, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--concurrency", type=int, default=64, help="requests at once (64)")
    parser.add_argument("--requests", type=int, default=6400)
    parser.add_argument("--service", type=float, nargs="+", default=[100, 20], help="milliseconds that the server takes (100 20)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", default="benchmarks/pipelines.md")
    arguments = parser.parse_args()
    (ROOT / DIR).mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
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
    hidden = {"--throughput", "--python"}
    report = [
        "# Requests of the data pipelines beside Python's clients",
        "",
        *report_head("scripts/bench/pipelines", shown_arguments(hidden), load, packages),
        f"- {arguments.requests:,} requests of 1.8 KB to a local server in another process, {arguments.concurrency} at once, "
        f"{arguments.rounds} rounds in turns; medians",
        "",
        *HEAD,
        *lines,
        "",
        "At most so many requests a second are answered by a server that takes so long for each, so many at once; the rest is what client, "
        "system and server add. The journal has every reply on the disk before anything is made of it.",
        "",
    ]
    (ROOT / arguments.output).write_text("\n".join(report), encoding="utf-8")
    print("\n".join(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
