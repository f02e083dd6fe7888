"""Compares the caches of tooltune and huggingface_hub; see scripts/verify/hub."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CLIENT = """
import sys
from huggingface_hub import snapshot_download, hf_hub_download
repo, kind, offline, *patterns = sys.argv[1:]
print(snapshot_download(repo, repo_type=kind, allow_patterns=patterns or None,
                        local_files_only=offline == "offline"))
"""

MODEL = {
    "config.json": b'{"model_type": "llama"}',
    "generation_config.json": b"{}",
    "tokenizer.json": "{\"é\": 1}".encode(),
    "model.safetensors.index.json": json.dumps(
        {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    ).encode(),
    "model-1.safetensors": os.urandom(3_000_000),
    "model-2.safetensors": os.urandom(200_000),
    "README.md": b"# not read",
    "original/params.json": b"{}",
}
NEEDED = [name for name in MODEL if name not in ("README.md", "original/params.json")]
ROWS = {"data/train.jsonl": b'{"prompt": "a", "completion": "b"}\n', "README.md": b"# rows"}


def layout(cache: Path) -> dict[str, str]:
    """Returns every file of a cache by name: the target of a link, the contents of a file."""
    found = {}
    for path in sorted(cache.rglob("*")):
        name = str(path.relative_to(cache))
        if path.is_symlink():
            found[name] = "-> " + os.readlink(path)
        elif path.is_file():
            # Only the existence of a lock is compared.
            found[name] = "lock" if name.endswith(".lock") else path.read_bytes().hex()
    return found


def check(what: str, is_right: bool, shown: object = "") -> None:
    print(f"{'same ' if is_right else 'OTHER'}  {what}")
    if not is_right:
        sys.exit(f"verify/hub: {what}: {shown}")


class Side:
    """Both clients with the same cache and the same server."""

    def __init__(self, tooltune: str, url: str, home: Path) -> None:
        self.tooltune = tooltune
        self.cache = home / "hub"
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("HF_")},
            "HF_HOME": str(home),
            "HF_ENDPOINT": url,
            # The server does not support Xet.
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }

    def run(self, command: list[str], **more: str) -> str:
        done = subprocess.run(
            command, env={**self.environment, **more}, capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(f"verify/hub: {command[:4]} failed:\n{done.stdout}{done.stderr}")
        return done.stdout.strip()

    def ours(self, name: str, **more: str) -> Path:
        return Path(self.run([self.tooltune, "fetch", name], **more).splitlines()[-1].split(" -> ")[-1])

    def theirs(self, repo: str, kind: str, patterns: list[str], offline: bool = False) -> Path:
        mode = "offline" if offline else "online"
        return Path(self.run([sys.executable, "-c", CLIENT, repo, kind, mode, *patterns]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tooltune")
    parser.add_argument("server")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for repo, files in (("models/org/tiny", MODEL), ("datasets/org/rows", ROWS)):
            for name, content in files.items():
                path = root / "served" / repo / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        with subprocess.Popen(
            [arguments.server, str(root / "served")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as server:
            assert server.stdout and server.stdin
            url = server.stdout.readline().strip()
            try:
                compare(arguments.tooltune, url, root)
            finally:
                server.stdin.close()


def compare(tooltune: str, url: str, root: Path) -> None:
    rows = "hf://datasets/org/rows/data/train.jsonl"
    ours = Side(tooltune, url, root / "ours")
    theirs = Side(tooltune, url, root / "theirs")
    path = ours.ours("org/tiny")
    ours.ours(rows)
    theirs.theirs("org/tiny", "model", NEEDED)
    theirs.theirs("org/rows", "dataset", ["data/train.jsonl"])
    one, other = layout(ours.cache), layout(theirs.cache)
    check(
        f"the cache has the same {len(one)} files, byte for byte",
        one == other,
        {name: (one.get(name), other.get(name)) for name in one.keys() ^ other.keys()}
        or [name for name in one if one[name] != other[name]],
    )
    for name in NEEDED:
        check(f"{name} has its content", (path / name).read_bytes() == MODEL[name])

    check(
        "huggingface_hub finds offline what tooltune fetched",
        ours.theirs("org/tiny", "model", NEEDED, offline=True) == path,
    )
    found = theirs.ours("org/tiny", HF_HUB_OFFLINE="1")
    check("tooltune finds offline what huggingface_hub fetched", found.parent.parent.parent == theirs.cache)
    check("the same file of rows", theirs.ours(rows, HF_HUB_OFFLINE="1").read_bytes() == ROWS["data/train.jsonl"])
    before = layout(ours.cache)
    ours.theirs("org/tiny", "model", NEEDED)
    ours.ours("org/tiny")
    check("fetching again changes nothing", before == layout(ours.cache))

    # An incomplete download of the other client.
    halves = Side(tooltune, url, root / "halves")
    whole = next(p for p in ours.cache.glob("models--org--tiny/blobs/*") if p.stat().st_size == 3_000_000)
    half = halves.cache / "models--org--tiny" / "blobs" / f"{whole.name}.incomplete"
    half.parent.mkdir(parents=True)
    half.write_bytes(whole.read_bytes()[:1_000_000])
    path = halves.ours("org/tiny")
    check("an incomplete download is continued", (path / "model-1.safetensors").read_bytes() == MODEL["model-1.safetensors"])
    check(
        "huggingface_hub reads the result",
        halves.theirs("org/tiny", "model", NEEDED, offline=True) == path,
    )
    shutil.rmtree(root / "halves")


if __name__ == "__main__":
    main()
