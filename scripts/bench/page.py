"""Shared code of the scripts that write a page of benchmarks: their options, the head of a page, and its file.

Standard library only.
"""

import argparse
import datetime
import os
import shlex
import sys
import time
from pathlib import Path

from machine import ROOT, commit, cpu_name, say


class Options(argparse.ArgumentParser):
    """The options of a benchmark. Its wrapper script passes the hidden ones; --help and the page omit them."""

    def __init__(self, description: str, wrapper: tuple = ()):
        """`wrapper`: the hidden options that are required."""
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        self.hidden = set()
        for name in wrapper:
            self.add_hidden(name, required=True)

    def add_hidden(self, name: str, **settings) -> None:
        self.hidden.add(name)
        self.add_argument(name, help=argparse.SUPPRESS, **settings)

    def add_output(self, default: str) -> None:
        self.add_argument("--output", type=Path, default=Path(default), help=f"file to write ({default})")

    def visible_arguments(self, *omitted: str) -> list:
        """The command line without the hidden options, the `omitted` ones, and their values."""
        excluded = self.hidden | set(omitted)
        return [a for i, a in enumerate(sys.argv[1:]) if a not in excluded and sys.argv[i] not in excluded]


class Page:
    """A page of benchmarks. Create it before the measurements: its head has the load average from before them."""

    def __init__(self, script: str, arguments: list, output: str | Path):
        self.command = f"scripts/bench/{script} {shlex.join(arguments)}".rstrip()
        self.output = output
        self.load, self.started = os.getloadavg()[0], time.monotonic()

    def head(self, title: str, last_item: str) -> list:
        return [f"# {title}", "", *self.origin(last_item)]

    def origin(self, last_item: str) -> list:
        """The command that wrote the page, and a list of the date, the commit, the machine and `last_item`."""
        return [
            f"Written by `{self.command}`; do not edit.",
            "",
            f"- {datetime.date.today().isoformat()}, commit {commit()}",
            f"- {cpu_name()}, {os.cpu_count()} cores; load average {self.load:.2f} before, {os.getloadavg()[0]:.2f} after",
            f"- {last_item}",
        ]

    def write(self, lines: list) -> None:
        """Writes the lines to the file, whose path is relative to the repository, and prints them."""
        text = "\n".join(lines) + "\n"
        path = ROOT / self.output
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(text)
        say(f"{self.output} written after {(time.monotonic() - self.started) / 60:.0f} min")
