"""Copies the pages and the files that they link to target/site-src, with the table of contents for mdBook.

The contents are the lists of docs/README.md, then every benchmark, then the pages about the project.
"""

import pathlib
import re
import shutil

import links

ROOT = links.ROOT
SOURCE = ROOT / "target/site-src"
PROJECT = ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md", "tests/invariants.md"]
ENTRY = re.compile(r"^- \[([^\]]+)\]\(([^)]+\.md)\)")


def title(page):
    """The first heading of a page."""
    return next(found[1] for _, line in links.prose(page) if (found := links.HEADING.match(line)))


def contents():
    """The pages by part: title and path of each."""
    parts, guide = {}, ROOT / "docs/README.md"
    for _, line in links.prose(guide):
        if line.startswith("## "):
            parts[line.removeprefix("## ")] = part = []
        elif entry := ENTRY.match(line):
            part.append((entry[1], f"docs/{entry[2]}"))
    benchmarks = sorted((ROOT / "benchmarks").glob("*.md"))
    parts["Benchmarks"] = [(title(page), str(page.relative_to(ROOT))) for page in benchmarks]
    parts["The project"] = [(title(ROOT / page), page) for page in PROJECT]
    return parts


def on_site(path):
    """The path of a page on the site: mdBook names README.md index.html, but not the links to it."""
    return path.replace("README.md", "index.md")


def copy(path):
    """Copies a file to the same place below the source of the site."""
    target = SOURCE / on_site(str(path.relative_to(ROOT)))
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".md":
        text = path.read_text(encoding="utf-8")
        text = links.LINK.sub(lambda link: on_site(link[0]), text)
        target.write_text(text, encoding="utf-8")
    else:
        shutil.copyfile(path, target)


def copy_linked(page):
    """Copies every file other than a page that a page links to."""
    for _, line in links.prose(page):
        for link in links.LINK.findall(links.CODE.sub("", line)):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target.is_file() and target.suffix != ".md" and target.is_relative_to(ROOT):
                copy(target)


def main():
    shutil.rmtree(SOURCE, ignore_errors=True)
    summary = ["# Summary", "", "[The guide](docs/index.md)", ""]
    pages = ["docs/README.md"]
    for part, entries in contents().items():
        summary += [f"# {part}", ""] + [f"- [{name}]({on_site(path)})" for name, path in entries] + [""]
        pages += [path for _, path in entries]
    for page in pages:
        copy(ROOT / page)
        copy_linked(ROOT / page)
    (SOURCE / "SUMMARY.md").write_text("\n".join(summary), encoding="utf-8")
    print(f"scripts/site: {len(pages)} pages in {SOURCE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
