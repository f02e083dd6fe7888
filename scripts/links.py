"""Follows every relative link of the tracked Markdown files, to the file and to the heading. Also checks that
the code paths and functions on the pages about the project exist."""

import functools
import pathlib
import re
import subprocess
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^\s*(`{3,}|~{3,})")
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
REFERENCE = re.compile(r"^\[[^\]]+\]:\s+(\S+)")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$")
#: Paths in code spans; a word in capitals, such as NAME, is left to the reader.
PATH = re.compile(r"`((?:checkpoints|configs|data|docs|kernels|scripts|tests|trainer)/[\w./-]+)`")
#: Names of functions in code spans, such as tests, by their many words.
FUNCTION = re.compile(r"`([a-z0-9]+(?:_[a-z0-9]+){4,})`")
PLACEHOLDER = re.compile(r"[A-Z]{3}")
PROJECT = {"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"}
ANCHOR = re.compile(r"<a\s+(?:id|name)=\"([^\"]+)\"")


def prose(path):
    """The lines of a page outside code blocks, each with its number."""
    fence = None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if found := FENCE.match(line):
            if fence is None:
                fence = found[1]
            elif found[1].startswith(fence):
                fence = None
        elif fence is None:
            yield number, line


@functools.cache
def anchors(path):
    """The anchors of a page as GitHub names them."""
    found, counts = set(), {}
    for _, line in prose(path):
        found.update(ANCHOR.findall(line))
        if heading := HEADING.match(line):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
            slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
            n = counts.get(slug, 0)
            counts[slug] = n + 1
            found.add(f"{slug}-{n}" if n else slug)
    return found


def fault(page, link):
    """Why a link leads nowhere, or None."""
    name, _, anchor = link.partition("#")
    target = page if not name else (page.parent / urllib.parse.unquote(name)).resolve()
    if not target.is_relative_to(ROOT):
        return "leads out of the repository"
    if not target.exists():
        return "does not exist"
    if anchor and target.suffix == ".md" and anchor not in anchors(target):
        return f"has no heading #{anchor}"
    return None


@functools.cache
def functions():
    """The names of all functions in Rust files."""
    found = subprocess.run(["git", "grep", "-hoE", r"\bfn [a-z0-9_]+", "--", "*.rs"], cwd=ROOT, capture_output=True, text=True, check=True)
    return {line.removeprefix("fn ") for line in found.stdout.splitlines()}


def main():
    listed = subprocess.run(["git", "ls-files", "-z", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    n_links, faults = 0, []
    for name in filter(None, listed.stdout.split("\0")):
        page = ROOT / name
        if "/fixtures/" in name or not page.is_file():
            continue
        for number, line in prose(page):
            for path in PATH.findall(line) if name in PROJECT else []:
                if not PLACEHOLDER.search(path) and not (ROOT / path).exists():
                    faults.append(f"{name}:{number}: {path} does not exist")
            for function in FUNCTION.findall(line) if name in PROJECT else []:
                if function not in functions():
                    faults.append(f"{name}:{number}: no function is called {function}")
            line = CODE.sub("", line)
            for link in LINK.findall(line) + REFERENCE.findall(line):
                if re.match(r"[a-z][a-z+.-]*:", link):
                    continue
                n_links += 1
                if why := fault(page, link):
                    faults.append(f"{name}:{number}: {link} {why}")
    print(*faults, sep="\n", end="\n" if faults else "")
    print(f"scripts/links: {n_links} relative links, {len(faults)} broken")
    if faults or not n_links:
        sys.exit(1)


if __name__ == "__main__":
    main()
