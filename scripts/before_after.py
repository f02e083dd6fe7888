#!/usr/bin/env python3
"""Prints the numbers of two metrics.json files side by side: before_after.py BEFORE AFTER.

Nested objects become dotted names. Numbers between 0 and 1 are shown as fractions with three decimals, counts as they are;
a metric that only one file has is shown with a dash on the other side.
"""

import json
import sys


def numbers(value, name=""):
    """Yields (dotted name, number) for every number in nested objects; text and lists are passed over."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers(inner, f"{name}.{key}" if name else key)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield name, value


def read(path: str) -> dict:
    try:
        with open(path, encoding="utf-8") as file:
            return dict(numbers(json.load(file)))
    except (OSError, ValueError) as error:
        raise SystemExit(f"before_after: {path}: {error}")


def shown(value) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.3f}"


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    before, after = read(sys.argv[1]), read(sys.argv[2])
    names = list(dict.fromkeys([*before, *after]))
    width = max([len(name) for name in names] + [6])
    print(f"{'metric':<{width}}  {'before':>10}  {'after':>10}")
    print("-" * (width + 24))
    for name in names:
        print(f"{name:<{width}}  {shown(before.get(name)):>10}  {shown(after.get(name)):>10}")


if __name__ == "__main__":
    main()
