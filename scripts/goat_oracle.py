#!/usr/bin/env python3
"""An OpenAI chat-completions server that answers the requests of `tooltune data goat` by rules.

It replaces a good model if there is none: it knows the synthetic world of `tooltune data synth goat` from its tables
(data/synth/src/goat) and from WORLD, trajectories of that command from which it takes existing values. From a request
it uses only the prompt, like any server; its reply is a function of the prompt and the seed. Like a model it makes
errors: it accepts some wrong edges, misses some true ones, and some of its replies are not JSON. The constants below
set how many.

    goat_oracle.py WORLD --address FILE     WORLD is JSON Lines; the URL is written to FILE once the server listens
"""

import argparse
import hashlib
import json
import re
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLES = ROOT / "data/synth/src/goat"
PROMPTS = ROOT / "configs/prompts"

# The oracle accepts one of HOPES wrong edges, and misses one of MISSES true edges. One of SLIPS replies is not JSON.
HOPES, MISSES, SLIPS = 15, 12, 60
# Percentage of optional arguments that are passed.
OPTIONAL = 15
# Characters per token, for the usage counts.
TOKEN = 4


def number(*parts) -> int:
    """A deterministic number derived from texts and numbers."""
    return int(hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12], 16)


def part(prompt: str, tag: str) -> str:
    found = re.search(rf"<{tag}>\n(.*?)\n</{tag}>", prompt, re.DOTALL)
    if not found:
        raise ValueError(f"the prompt has no <{tag}>")
    return found[1]


def value(prompt: str, tag: str):
    return json.loads(part(prompt, tag))


def places(within, wanted, path=()):
    """The paths to a value, each a tuple of keys and positions."""
    if isinstance(within, (dict, list)):
        for key, inner in within.items() if isinstance(within, dict) else enumerate(within):
            yield from places(inner, wanted, (*path, key))
    elif within == wanted and isinstance(within, bool) == isinstance(wanted, bool):
        yield path


def scalars(within):
    if isinstance(within, (dict, list)):
        for inner in within.values() if isinstance(within, dict) else within:
            yield from scalars(inner)
    else:
        yield within


def at(result, path: str):
    """The first value at a path such as `inns[].inn_id`; None if the path does not exist."""
    for key in path.split("."):
        if not isinstance(result, dict):
            return None
        result = result.get(key.removesuffix("[]"))
        if key.endswith("[]"):
            result = result[0] if isinstance(result, list) and result else None
    return result


class Api:
    def __init__(self, tool: dict, api: dict):
        self.name = f"{tool['name']}/{api['name']}"
        self.parameters = {parameter["name"]: parameter for parameter in api["parameters"]}
        self.sub_query = api["sub_queries"][0]
        prefix = f"{api['list']}[]." if api.get("list") else ""
        self.returns = api["returns"]
        self.fields = {}
        for field in api.get("fields", []):
            self.fields.setdefault(field["kind"], prefix + field["column"])


class World:
    def __init__(self, rows: Path):
        self.kinds = {kind["name"]: kind for kind in tomllib.loads((TABLES / "kinds.toml").read_text())["kinds"]}
        files = [tomllib.loads(path.read_text()) for path in sorted((TABLES / "apis").glob("*.toml"))]
        apis = [Api(tool, api) for file in files for tool in file["tool"] for api in tool["api"]]
        self.apis = {api.name: api for api in apis}
        self.values = {}
        for kind in self.kinds.values():
            if "integers" in kind["values"]:
                low, high = kind["values"]["integers"]
                self.values[kind["name"]] = list(range(low, high + 1))
            elif "choice" in kind["values"]:
                self.values[kind["name"]] = kind["values"]["choice"]
        found = {}
        for line in rows.read_text().splitlines():
            for call in json.loads(line)["calls"]:
                for name, argument in call["arguments"].items():
                    kind = self.apis[call["name"]].parameters[name]["kind"]
                    if kind not in self.values:
                        found.setdefault(kind, set()).add(argument)
        self.values |= {kind: sorted(values) for kind, values in found.items()}

    def drawn(self, api: Api, *seed) -> dict:
        """Arguments that exist; optional ones are sometimes omitted."""
        arguments = {}
        for name, parameter in api.parameters.items():
            draw = number(api.name, name, *seed)
            values = self.values.get(parameter["kind"], [])
            if values and ("optional" not in parameter or draw % 100 < OPTIONAL):
                arguments[name] = values[draw // 100 % len(values)]
        return arguments

    def noun(self, kind: str) -> str:
        """The name of a kind in sentences."""
        thing, _, what = kind.partition(".")
        return thing if what in ("id", "name", "title") else what

    def spoken(self, kind: str, argument) -> str:
        phrases = self.kinds[kind].get("phrases", ["{}"])
        return phrases[0].replace("{}", str(argument))


class Oracle:
    """One method per prompt, named after its file."""

    def __init__(self, world: World):
        self.world = world
        # A prompt is recognised by its first line.
        self.prompts = {path.read_text().splitlines()[0]: path.stem for path in (PROMPTS / "goat").glob("*.jinja")}
        self.again = (PROMPTS / "again.jinja").read_text().splitlines()[2].split("{{")[0]

    def says(self, prompt: str, seed: int) -> str:
        asked, _, refused = prompt.partition(f"\n\n{self.again}")
        name = self.prompts.get(asked.splitlines()[0] if asked else "")
        if name is None:
            raise ValueError("this is not a prompt of configs/prompts/goat")
        if not refused and number("slip", asked) % SLIPS == 0:
            return "I would have to look at that more closely first."
        said = getattr(self, name)(asked, seed)
        return f"```json\n{json.dumps(said)}\n```"

    def api(self, prompt: str, tag: str = "api") -> Api:
        return self.world.apis[value(prompt, tag)["name"]]

    def parse(self, prompt, seed):
        api = self.api(prompt)
        texts = {}
        for name, parameter in api.parameters.items():
            texts[name] = f"{parameter['description'].rstrip('.')}: the {self.world.noun(parameter['kind'])}."
        return {"input_params": texts, "output": api.returns}

    def filter(self, prompt, seed):
        source, target = self.api(prompt, "first_api"), self.api(prompt, "second_api")
        name = part(prompt, "parameter")
        parameter = target.parameters[name]
        path = source.fields.get(parameter["kind"])
        draw = number("edge", source.name, target.name, name)
        if path and "optional" not in parameter:
            reason = f"The {self.world.noun(parameter['kind'])} stands in the result at {path}."
            return {"reason": reason, "connectable": draw % MISSES != 0}
        hopes = "optional" not in parameter and draw % HOPES == 0
        return {"reason": "Something of this kind may stand in the result.", "connectable": hopes}

    def first_call(self, prompt, seed):
        return self.world.drawn(self.api(prompt), seed)

    def other_call(self, prompt, seed):
        api, taken = self.api(prompt), value(prompt, "taken")
        drawn = (self.world.drawn(api, seed, turn) for turn in range(20))
        return next((arguments for arguments in drawn if arguments not in taken), {})

    def taken(self, result, reason: str, parameter: dict):
        """The value that a reason refers to in a result; otherwise the first value of the parameter's type."""
        path = re.search(r" at (\S+)\.$", reason)
        found = at(result, path[1]) if path else None
        if found is None:
            wanted = (int, float) if self.world.kinds[parameter["kind"]].get("type") else str
            found = next((scalar for scalar in scalars(result) if isinstance(scalar, wanted)), None)
        return found

    def next_call(self, prompt, seed):
        api, name = self.api(prompt), part(prompt, "parameter")
        found = self.taken(value(prompt, "result"), part(prompt, "reason"), api.parameters[name])
        return self.world.drawn(api, prompt) | {name: found}

    def check_call(self, prompt, seed):
        argument = value(prompt, "arguments").get(part(prompt, "parameter"))
        stands = next(places(value(prompt, "result"), argument), None) is not None
        return {"reason": "I have compared them.", "connectable": stands}

    def fill_call(self, prompt, seed):
        api = self.api(prompt)
        results = {result["number"]: result["result"] for result in value(prompt, "results")}
        wanted = value(prompt, "wanted")
        found = lambda want: self.taken(results[want["result"]], want["reason"], api.parameters[want["parameter"]])
        return {want["parameter"]: found(want) for want in wanted}

    def complete_call(self, prompt, seed):
        return self.world.drawn(self.api(prompt), seed) | value(prompt, "arguments")

    def sub_query(self, prompt, seed):
        api, arguments = self.api(prompt), value(prompt, "arguments")
        results = [result["result"] for result in value(prompt, "earlier_results")]
        text, more = api.sub_query, []
        for name, argument in arguments.items():
            parameter = api.parameters[name]
            kind = parameter["kind"]
            place = next(places(results, argument), None)
            if place is None:
                words = self.world.spoken(kind, argument)
            else:
                is_of_list = any(isinstance(key, int) for key in place[1:])
                words = f"the {'first ' if is_of_list else ''}{self.world.noun(kind)} that was found"
            if f"{{{name}}}" in text:
                text = text.replace(f"{{{name}}}", words)
            else:
                phrase = parameter.get("optional", {}).get("phrases", [" with {}"])[0]
                more.append(phrase.replace("{}", words))
        return {"thought": "I state what no result holds.", "instruction": text.rstrip(".") + "".join(more) + "."}

    def query(self, prompt, seed):
        steps = [step.rstrip(".") for step in value(prompt, "steps")]
        steps = [step[:1].lower() + step[1:] for step in steps]
        begin = ("Please", "Could you", "I need you to")[number("query", prompt) % 3]
        end = "?" if begin == "Could you" else "."
        return {"thought": "All steps serve one wish.", "query": f"{begin} {', then '.join(steps)}{end}"}

    def response(self, prompt, seed):
        step = value(prompt, "steps")[-1]
        found = [str(scalar) for scalar in scalars(step["result"])]
        return {"thought": "The last step answers it.", "final_answer": f"This is what I found: {', '.join(found)}."}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Send small replies immediately.
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            request = json.loads(body)
            prompt = request["messages"][-1]["content"]
            text = self.server.oracle.says(prompt, request.get("seed", 0))
            usage = {"prompt_tokens": len(prompt) // TOKEN, "completion_tokens": len(text) // TOKEN}
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            status, answer = 200, {"object": "chat.completion", "model": "oracle", "choices": [choice], "usage": usage}
        except (ValueError, KeyError, IndexError, TypeError) as error:
            status, answer = 400, {"error": {"message": f"{type(error).__name__}: {error}"}}
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("world", type=Path, help="trajectories of `tooltune data synth goat`")
    parser.add_argument("--address", type=Path, required=True, help="file for the URL")
    args = parser.parse_args()
    server = Server(("127.0.0.1", 0), Handler)
    server.oracle = Oracle(World(args.world))
    args.address.write_text(f"http://127.0.0.1:{server.server_address[1]}/v1\n")
    server.serve_forever()


if __name__ == "__main__":
    main()
