"""Calls one function of the code on standard input and writes what it returned as JSON."""

import json
import os
import sys


def main():
    result = int(sys.argv[1])
    for inherited in sys.argv[2:]:
        os.close(int(inherited))
    sys.argv[:] = [""]
    # Before Python 3.11, only this removes the working directory from the module path.
    sys.path[:] = [place for place in sys.path if place]
    printed = [sys.stdout, sys.stderr]
    request = json.loads(sys.stdin.buffer.read())
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    try:
        answer = call(request)
    except MemoryError:
        answer = {"memory": None}
    except SystemExit as left:
        answer = {"left": {"code": shown(str, left.code)}}
    except BaseException as error:
        answer = {"raised": described(error, request["code"])}
    write(result, answer, request["max_bytes"])
    # The code may have replaced the streams.
    for stream in printed + [sys.stdout, sys.stderr]:
        try:
            stream.flush()
        except BaseException:
            # Output that cannot be flushed is lost, as at the end of any program.
            pass
    # Skip threads that are still running and exit handlers: they belong to the code, and its call
    # is over.
    os._exit(0)


def call(request):
    module = type(sys)("sandboxed")
    # Dataclasses and pickle look up the module of a class.
    sys.modules["sandboxed"] = module
    exec(compile(request["code"], "<code>", "exec"), module.__dict__)
    function = module.__dict__.get(request["function"])
    if not callable(function):
        return {"no_function": request["function"]}
    value = function(json.loads(request["argument"]))
    returned = {"repr": clean(repr(value)), "str": clean(str(value)), "type": type(value).__name__}
    try:
        returned["json"] = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        returned["no_json"] = shown(str, error)
    return {"returned": returned}


def clean(text):
    """Returns the text as valid UTF-8: a lone surrogate is replaced by its escaped number."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def shown(convert, value):
    """Converts a value to text. A `__repr__` or `__str__` of the code may raise."""
    try:
        return clean(convert(value))
    except Exception as error:
        return "<{} of {}>".format(type(error).__name__, type(value).__name__)


def described(error, code):
    import linecache
    import traceback

    linecache.cache["<code>"] = (len(code), None, code.splitlines(True), "<code>")
    within = error.__traceback__
    # The first two frames belong to this file.
    for _ in range(2):
        within = within.tb_next if within is not None else None
    lines = shown(lambda e: "".join(traceback.format_exception(type(e), e, within)), error)
    return {"type": type(error).__name__, "message": shown(str, error), "traceback": lines}


def write(result, answer, max_bytes):
    text = json.dumps(answer).encode("ascii")
    if len(text) > max_bytes:
        text = json.dumps({"too_large": None}).encode("ascii")
    # The code may have found the descriptor and written to it.
    os.ftruncate(result, 0)
    os.lseek(result, 0, os.SEEK_SET)
    while text:
        text = text[os.write(result, text):]


main()
