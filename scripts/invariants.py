"""Writes tests/invariants.md from the doc lines `/// Invariant: …` of the tests; `--check` compares."""

import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "tests/invariants.md"
MARK = "/// Invariant: "
FUNCTION = re.compile(r"(?:async )?fn (\w+)")
HEAD = """# Invariants

Each test with a doc line `/// Invariant: …` is listed here.
`scripts/docs --invariants` writes this page, and `tests/layering` compares it with the tests.
"""


def stated(source):
    """The invariants of a file, each with the name of its test."""
    pending, is_open = [], False
    for line in map(str.strip, source.splitlines()):
        if line.startswith(MARK):
            pending.append(line.removeprefix(MARK))
            is_open = True
        elif line.startswith("///"):
            rest = line.removeprefix("///").strip()
            is_open = is_open and bool(rest)
            if is_open:
                pending[-1] += " " + rest
        else:
            is_open = False
            if found := FUNCTION.match(line):
                yield from ((sentence, found[1]) for sentence in pending)
                pending = []


def page():
    tests = collections.defaultdict(set)
    folders = {}
    listed = subprocess.run(["git", "ls-files", "*.rs"], cwd=ROOT, capture_output=True, text=True, check=True)
    for path in sorted(listed.stdout.split()):
        if not (ROOT / path).is_file():
            continue
        for sentence, name in stated((ROOT / path).read_text(encoding="utf-8")):
            tests[sentence].add(name)
            folders.setdefault(sentence, path.split("/")[0])
    lines = [HEAD]
    for folder in sorted(set(folders.values())):
        lines += [f"## {folder}", "", "| invariant | tests |", "|---|---|"]
        for sentence in sorted(s for s in folders if folders[s] == folder):
            names = ", ".join(f"`{name}`" for name in sorted(tests[sentence]))
            lines.append(f"| {sentence} | {names} |")
        lines.append("")
    return "\n".join(lines)


def main():
    text = page()
    if "--check" not in sys.argv:
        PAGE.write_text(text, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != text:
        sys.exit("tests/invariants.md differs from the doc lines of the tests: run scripts/docs --invariants")


if __name__ == "__main__":
    main()
