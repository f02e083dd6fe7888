"""Compares tooltune's MCP client with the official one; see scripts/verify/mcp."""

import asyncio
import importlib.metadata
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

SERVER = [sys.executable, "-m", "mcp_server_time", "--local-timezone", "Etc/UTC"]

# Calls whose results do not depend on the time, except on days when the clocks change.
CALLS = [
    ("convert_time", {"source_timezone": "Etc/UTC", "time": "12:30", "target_timezone": "Asia/Tokyo"}),
    ("convert_time", {"source_timezone": "Asia/Kolkata", "time": "00:15", "target_timezone": "Etc/UTC"}),
    ("convert_time", {"source_timezone": "Etc/UTC", "time": "25:99", "target_timezone": "Asia/Tokyo"}),
    ("get_current_time", {"timezone": "No/Where"}),
]


async def official() -> tuple:
    """Returns the tools, and for each call its structured result or its text, and whether it failed."""
    async with stdio_client(StdioServerParameters(command=SERVER[0], args=SERVER[1:])) as streams:
        async with ClientSession(*streams) as session:
            await session.initialize()
            tools = (await session.list_tools()).tools
            answers = []
            for name, arguments in CALLS:
                result = (await session.call_tool(name, arguments)).model_dump(by_alias=True)
                text = " ".join(block.get("text", "") for block in result["content"])
                structured = result.get("structuredContent")
                answers.append((structured if structured is not None else text, bool(result.get("isError"))))
            return [tool.model_dump(by_alias=True) for tool in tools], answers


def parsed(answer):
    """Parses a string that is JSON; returns anything else unchanged."""
    try:
        return json.loads(answer) if isinstance(answer, str) else answer
    except ValueError:
        return answer


def main() -> int:
    tooltune, calls = sys.argv[1:]
    tools, theirs = asyncio.run(official())
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "tools.jsonl"
        subprocess.run([tooltune, "data", "import", "mcp", "--command", " ".join(SERVER), "--output", output], check=True)
        documents = [json.loads(line) for line in output.read_text().splitlines()]
    for tool, document in zip(tools, documents, strict=True):
        names = {p["name"] for kind in ("required", "optional") for p in document[f"{kind}_parameters"]}
        required = {p["name"] for p in document["required_parameters"]}
        schema = tool["inputSchema"]
        same = document["api_name"] == tool["name"] and document["api_description"] == tool["description"]
        same &= names == set(schema["properties"]) and required == set(schema.get("required", []))
        print(f"{'same ' if same else 'OTHER'}  tool {tool['name']}")
        if not same:
            return 1
    lines = "".join(json.dumps({"name": name, "arguments": arguments}) + "\n" for name, arguments in CALLS)
    answered = subprocess.run([calls, *SERVER], input=lines, capture_output=True, text=True, check=True)
    ours = [json.loads(line) for line in answered.stdout.splitlines()]
    if ours[0] != [tool["name"] for tool in tools]:
        print(f"OTHER  names: {ours[0]}")
        return 1
    for (name, arguments), (answer, failed), own in zip(CALLS, theirs, ours[1:], strict=True):
        same = (own["exception"] is not None) == failed and parsed(own["output"]) == parsed(answer)
        print(f"{'same ' if same else 'OTHER'}  {name} {json.dumps(arguments)}")
        if not same:
            print(f"  official: {answer!r}, failed {failed}\n  tooltune: {own}")
            return 1
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("mcp", "mcp-server-time"))
    print(f"verify/mcp: {len(tools)} tools and {len(CALLS)} calls are the same with {versions}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
