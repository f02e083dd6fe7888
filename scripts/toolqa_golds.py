#!/usr/bin/env python3
"""Recomputes the gold answers of `tooltune data synth toolqa` in plain Python, and compares them.

    scripts/toolqa_golds.py QUESTIONS RESPONSES

The semantics of programs are written down in data/synth/src/toolqa/program.rs. Expressions that are not paths of keys
need the package jmespath. Prints the number of questions, and every difference; fails if there is one.
"""

import json
import re
import sys
from decimal import Decimal
from fractions import Fraction

KEYS = re.compile(r'(?:[A-Za-z_][A-Za-z0-9_]*|"(?:[^"\\]|\\.)*")(?:\.(?:[A-Za-z_][A-Za-z0-9_]*|"(?:[^"\\]|\\.)*"))*')
PART = re.compile(r'[A-Za-z_][A-Za-z0-9_]*|"(?:[^"\\]|\\.)*"')


def search(expression, value):
    if expression == "@":
        return value
    if not KEYS.fullmatch(expression):
        import jmespath

        return jmespath.search(expression, value)
    for part in PART.findall(expression):
        key = json.loads(part) if part.startswith('"') else part
        value = value.get(key) if isinstance(value, dict) else None
    return value


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def exact(value):
    if not is_number(value):
        raise ValueError(f"{value!r} is not a number")
    return Fraction(repr(value))


def equal(a, b):
    if is_number(a) and is_number(b):
        return exact(a) == exact(b)
    return type(a) is type(b) and a == b


def fulfils(record, condition):
    field, comparator, value = condition
    found = search(field, record)
    if found is None:
        return False
    if comparator == "in":
        return any(equal(found, item) for item in value)
    if comparator in ("==", "!="):
        return equal(found, value) == (comparator == "==")
    if not (is_number(found) and is_number(value)):
        return False
    a, b = exact(found), exact(value)
    return {"<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[comparator]


def text(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None or isinstance(value, (list, dict)) or (isinstance(value, str) and not value.strip()):
        raise ValueError(f"{value!r} is not an answer")
    return value if isinstance(value, str) else repr(value)


def decimal_text(fraction):
    """A fraction that is a finite decimal."""
    number = Decimal(fraction.numerator) / Decimal(fraction.denominator)
    return f"{number:f}".rstrip("0").rstrip(".") if "." in f"{number:f}" else f"{number:f}"


def only(values, what):
    if len(values) != 1:
        raise ValueError(f"{len(values)} {what}")
    return values[0]


def run(program, response):
    answer, field, by = program["answer"], program.get("field"), program.get("by")
    if "records" not in program:
        return text(search(field, response))
    records = [
        record
        for record in search(program["records"], response)
        if all(fulfils(record, condition) for condition in program.get("where", []))
    ]
    if answer == "count":
        return str(len(records))
    if answer == "exists":
        return "yes" if records else "no"
    if not records:
        raise ValueError("no record")
    if answer == "value":
        return text(search(field, only(records, "records")))
    if answer == "list":
        listed = {}
        for record in records:
            item = text(search(field, record))
            listed.setdefault(item.strip().lower(), item)
        return ", ".join(listed.values())
    if answer in ("sum", "mean", "min", "max"):
        numbers = [exact(search(field, record)) for record in records]
        if answer == "sum":
            return decimal_text(sum(numbers))
        if answer == "mean":
            # `round` of a fraction rounds half to even.
            return decimal_text(round(sum(numbers) / len(numbers), 2))
        best = min(numbers) if answer == "min" else max(numbers)
        return text(search(field, records[numbers.index(best)]))
    if answer in ("lower_of", "higher_of") and len(records) != 2:
        raise ValueError(f"{len(records)} records instead of two")
    is_highest = answer in ("argmax", "nth_highest", "higher_of")
    numbers = sorted((exact(search(by, record)) for record in records), reverse=is_highest)
    number = numbers[program.get("n", 1) - 1]
    return text(search(field, only([r for r in records if exact(search(by, r)) == number], "records tie")))


def project(value, paths):
    if any(not path for path in paths):
        return value
    if isinstance(value, list):
        return [project(item, paths) for item in value]
    if not isinstance(value, dict):
        return value
    below = {key: [path[1:] for path in paths if path[0] == key] for key in value}
    return {key: project(value[key], rest) for key, rest in below.items() if rest}


def position_holds(row, response):
    """Whether the record with the answer is in the eighth that the row states."""
    program, eighth = row["program"], row["answer_position"]
    records = search(program["records"], response)
    start, end = (eighth - 1) * len(records) // 8, eighth * len(records) // 8
    if program["answer"] in ("min", "max"):
        holders = [i for i, r in enumerate(records) if text(search(program["field"], r)) == row["gold_answer"]]
        holders = [i for i in holders if all(fulfils(records[i], c) for c in program.get("where", []))]
        return any(start <= i < end for i in holders)
    # Without the records outside of the eighth, the answer is still there; without the eighth, it is not.
    is_there = [
        i
        for i, r in enumerate(records)
        if all(fulfils(r, c) for c in program.get("where", [])) and text(search(program["field"], r)) == row["gold_answer"]
    ]
    return any(start <= i < end for i in is_there)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[2], encoding="utf-8") as file:
        responses = {row["response_id"]: row["response"] for row in map(json.loads, file)}
    with open(sys.argv[1], encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    n_wrong = n_placed = 0
    for row in rows:
        response, problems = responses[row["response_id"]], []
        try:
            golds = [run(row["program"], response), run(row["program"], project(response, row["read_keys"]))]
            if golds != [row["gold_answer"]] * 2:
                problems.append(f"{row['gold_answer']!r}, here {golds}")
            if "answer_position" in row:
                n_placed += 1
                if not position_holds(row, response):
                    problems.append(f"the answer is not in eighth {row['answer_position']}")
        except ValueError as error:
            problems.append(str(error))
        n_wrong += bool(problems)
        for problem in problems:
            print(f"{row['uid']}: {problem}")
    print(f"{len(rows)} questions, {n_placed} with a position, {n_wrong} differ")
    sys.exit(n_wrong > 0 or not rows)


if __name__ == "__main__":
    main()
