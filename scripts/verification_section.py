"""Sections of benchmarks/verification.md that scripts generate, each between its script's two markers."""

from pathlib import Path


def record(path: Path, script: str, title: str, text: str) -> None:
    """Replaces the section of `script` in a Markdown file, or adds it at the end."""
    begin, end = f"<!-- written by {script} -->", f"<!-- end of {script} -->"
    section = f"{begin}\n## {title}\n\nWritten by `{script}`.\n\n{text}\n{end}\n"
    old = path.read_text(encoding="utf-8") if path.exists() else "# Verification\n\n"
    start, stop = old.find(begin), old.find(end)
    if 0 <= start < stop:
        after = old[stop + len(end) :].lstrip("\n")
        new = old[:start] + section + (f"\n{after}" if after else "")
    else:
        new = old.rstrip("\n") + "\n\n" + section
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(new, encoding="utf-8")
