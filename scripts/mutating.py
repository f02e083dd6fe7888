"""Seeded mutations of bytes and of values, like damage by a disk, an editor or an adversary."""

import copy
import json
import random
import struct
import tomllib

# Maximum number of positions of a tree that are considered.
MOST_PLACES = 2_000
# Values that readers least expect.
ODD = [
    None, True, False, 0, -0.0, 1, -1, 2, 7, 0.5, 255, 65536, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30,
    -(2**63), 1e-300, 1e308, float("inf"), float("-inf"), float("nan"), "", " ", "a", "\0", "\n", "null", "\ud800", "\ufeffx", "é" * 50,
    "x" * 10_000, "{{ x }}", "{% for", "#", "../..", "/", "<|im_end|>", [], {}, [[]], [None], {"": None}, {"$ref": "#"}, {"type": "object"},
    ["a"] * 500, [0] * 5_000,
]
TOKENS = [
    b"{", b"}", b"[", b"]", b'"', b",", b":", b"\\", b"\\u0000", b"\\ud800", b"\xff", b"\xc3", b"\xf0\x9f", b"\0", b"\n", b"\r", b"=", b"'''", b"null",
    b"NaN", b"1e999", b"-", b"[" * 5_000, b'{"a":' * 2_000, b" " * 3_000, b"9" * 5_000, b"{{", b"{%", b"%}", b"<|im_start|>", b"\xef\xbb\xbf",
]  # fmt: skip
INTEGERS = [0, 1, 2, 3, 7, 8, 31, 32, 255, 256, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**61, 2**63 - 1, 2**63, 2**64 - 1]


def nested(depth: int, draw: random.Random) -> object:
    value: object = draw.choice(ODD[:8])
    for _ in range(depth):
        value = [value] if draw.random() < 0.5 else {"a": value}
    return value


def of_bytes(data: bytes, draw: random.Random, others: list[bytes]) -> bytes:
    """Changes of bytes: flipped, set, cut, duplicated, moved, or taken from another file."""
    out = bytearray(data)
    for _ in range(draw.choice([1, 1, 1, 2, 3, 8])):
        at = draw.randrange(len(out) + 1)
        end = min(len(out), at + draw.choice([1, 1, 2, 4, 8, 30, 200]))
        match draw.randrange(9):
            case 0 if at < len(out):
                out[at] ^= 1 << draw.randrange(8)
            case 1 if at < len(out):
                out[at] = draw.choice([0, 1, 10, 32, 34, 127, 128, 255, draw.randrange(256)])
            case 2:
                out[at:at] = draw.choice(TOKENS)
            case 3:
                del out[at:end]
            case 4:
                out[at:at] = bytes(out[at:end]) * draw.choice([1, 2, 50])
            case 5:
                del out[at:]
            case 6:
                other = draw.choice(others)
                start = draw.randrange(len(other) + 1)
                out[at:end] = other[start : start + draw.choice([1, 5, 50, 500])]
            case 7:
                out[at:end] = reversed(out[at:end])
            case 8:
                place = draw.choice([i for i, byte in enumerate(out[:4000]) if 48 <= byte < 58] or [at])
                out[place : place + 1] = draw.choice([b"-1", b"0", b"99", b"4294967296", b"18446744073709551616", b"1e9", b"0.5", b"-0"])
    return bytes(out)


def places(value: object, path: tuple = ()) -> list[tuple]:
    """The first positions of a tree, breadth first: limited, because a tree may have been duplicated repeatedly."""
    found = [(path, value)]
    for path, value in found:
        if len(found) >= MOST_PLACES:
            break
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        found += [((*path, key), child) for key, child in items]
    return [path for path, _ in found]


def at(value: object, path: tuple) -> object:
    for key in path:
        value = value[key]
    return value


def number(value: float, draw: random.Random) -> object:
    other = draw.choice([-1, 0, 0.5, 2, 1000, 2**31, -value if value else 1])
    return draw.choice([value + 1, value - 1, -value, value * other, float(value), str(value), *INTEGERS])


def text(value: str, draw: random.Random) -> object:
    cut = draw.randrange(len(value) + 1)
    return draw.choice(
        [value[:cut], value[cut:], value + value, value * 200, value.upper(), value[:cut] + draw.choice(["\0", "\u202e", "é", '"', "{", "\ud800"]) + value[cut:], [value], 0]
    )


def of_value(value: object, draw: random.Random) -> object:
    """Changes of values in a tree: replaced, removed, duplicated, renamed, moved, nested."""
    tree = copy.deepcopy(value)
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        path = draw.choice(places(tree))
        old = at(tree, path)
        match draw.randrange(8):
            case 0 | 1:
                # A copy: otherwise later changes of this tree would appear in every other tree.
                new = copy.deepcopy(draw.choice(ODD))
            case 2 if isinstance(old, (int, float)) and not isinstance(old, bool):
                new = number(old, draw)
            case 3 if isinstance(old, str):
                new = text(old, draw)
            case 4 if path:
                holder = at(tree, path[:-1])
                if isinstance(holder, dict):
                    if draw.random() < 0.5:
                        holder[draw.choice(["", "a", str(path[-1]).upper(), "type", "$ref", "\0"])] = holder.pop(path[-1])
                    else:
                        del holder[path[-1]]
                elif draw.random() < 0.5:
                    del holder[path[-1]]
                else:
                    # Large values are not enlarged further: this process's memory would be attributed to the programs
                    # that it starts.
                    few = len(places(old)) > 100
                    holder[path[-1] : path[-1]] = [old] * draw.choice([1, 2, 3 if few else 100])
                continue
            case 5:
                new = copy.deepcopy(at(tree, draw.choice(places(tree))))
            case 6:
                new = nested(draw.choice([1, 3, 60, 130, 200]), draw)
            case _:
                new = draw.choice([[old], {"a": old}, [old, old], str(old)[:200]])
        if not path:
            tree = new
        else:
            at(tree, path[:-1])[path[-1]] = new
    return tree


def dumped(value: object, draw: random.Random) -> bytes:
    shown = json.dumps(value, ensure_ascii=draw.random() < 0.5)
    return shown.encode("utf-8", "surrogatepass")


def of_json(data: bytes, draw: random.Random) -> bytes:
    return dumped(of_value(json.loads(data), draw), draw)


def of_json_lines(data: bytes, draw: random.Random) -> bytes:
    lines = data.splitlines()
    row = draw.randrange(len(lines))
    lines[row] = of_json(lines[row], draw)
    if draw.random() < 0.1:
        draw.shuffle(lines)
    return b"\n".join(lines) + b"\n"


def toml_value(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {toml_value(child)}" for key, child in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, float):
        return {"inf": "inf", "-inf": "-inf", "nan": "nan"}.get(str(value), repr(value))
    return json.dumps(value)


def of_toml(data: bytes, draw: random.Random) -> bytes:
    tree = of_value(tomllib.loads(data.decode()), draw)
    lines = tree.items() if isinstance(tree, dict) else [("x", tree)]
    shown = "".join(f"{json.dumps(str(key))} = {toml_value(value)}\n" for key, value in lines)
    return shown.encode("utf-8", "surrogatepass")


def of_safetensors(data: bytes, draw: random.Random) -> bytes:
    (length,) = struct.unpack_from("<Q", data)
    if draw.random() < 0.2:
        return struct.pack("<Q", draw.choice([*INTEGERS, length + 1, length - 1])) + data[8:]
    header = dumped(of_value(json.loads(data[8 : 8 + length]), draw), draw)
    if draw.random() < 0.5:
        header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + data[8 + length :]


def of_gguf(data: bytes, draw: random.Random) -> bytes:
    """Values in the header at any offset, often the first of them."""
    out = bytearray(data)
    for _ in range(draw.choice([1, 1, 2, 4])):
        place = draw.randrange(draw.choice([24, 200, 2_000, len(out) - 8]))
        form = draw.choice(["<I", "<Q", "<f", "<B"])
        value = draw.choice([0.0, -1.0, 1e30, float("nan"), float("inf")]) if form == "<f" else draw.choice(INTEGERS)
        size = struct.calcsize(form)
        out[place : place + size] = struct.pack(form, value if form == "<f" else value % 256**size)
    return bytes(out)


OF_KIND = {"json": of_json, "jsonl": of_json_lines, "toml": of_toml, "safetensors": of_safetensors, "gguf": of_gguf}


def mutated(data: bytes, kind: str, draw: random.Random, others: list[bytes]) -> bytes:
    """Bytes changed, values changed, or both."""
    which = draw.randrange(4)
    changed = OF_KIND.get(kind)
    if changed and which > 0:
        data = changed(data, draw)
    if which < 2 or not changed:
        data = of_bytes(data, draw, others)
    return data
