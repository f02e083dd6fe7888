"""A chat-completions server with a known service time, for scripts/bench/pipelines.

`pipelines_server.py SECONDS` listens on a free port of 127.0.0.1 and prints it. Standard library only; HTTP/1.1 with
keep-alive; only the length of a request is read.
"""

import asyncio
import json
import sys

TEXT = "It is about a hall with many seats. " * 8


def answer() -> bytes:
    message = {"role": "assistant", "content": TEXT}
    body = json.dumps({
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "served",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 400, "completion_tokens": 64, "total_tokens": 464},
    }).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body


ANSWER = answer()


class Connection(asyncio.Protocol):
    """One connection with consecutive requests."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self.received = bytearray()

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.received += data
        while (end := self.received.find(b"\r\n\r\n")) >= 0:
            head = bytes(self.received[:end]).lower()
            length = int(head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
            if len(self.received) < end + 4 + length:
                return
            del self.received[:end + 4 + length]
            asyncio.get_running_loop().call_later(self.seconds, self.answer)

    def answer(self):
        if not self.transport.is_closing():
            self.transport.write(ANSWER)


async def serve(seconds: float):
    server = await asyncio.get_running_loop().create_server(lambda: Connection(seconds), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1])))
