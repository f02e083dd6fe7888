"""Runs calls with the functions of a folder. Each result is passed to later calls as the same object."""

import importlib.util
import json
import random
import sys


def main(request):
    random.seed(0)
    sys.path.insert(0, request["folder"])
    results = []
    for position, call in enumerate(request["calls"]):

        def value(argument):
            return argument["literal"] if "literal" in argument else results[argument["result"]]

        try:
            function = load(request["folder"], call["file"], call["name"])
            positional = [value(argument) for argument in call["positional"]]
            keywords = {key: value(argument) for key, argument in call["keywords"]}
            results.append(function(*positional, **keywords))
        except Exception as error:
            reason = "{}: {}".format(type(error).__name__, error)
            return json.dumps({"failed": {"call": position, "reason": reason}})
    return json.dumps({"value": plain(results[-1])})


def load(folder, file, name):
    spec = importlib.util.spec_from_file_location("tool_" + name, folder + "/" + file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def plain(value):
    """Converts NumPy numbers to Python numbers, and marks values that JSON cannot represent."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, tuple):
        return {"\0tuple": [plain(item) for item in value]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return {"\0other": repr(value)}
