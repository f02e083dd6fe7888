"""Sends the requests of data/pipelines/examples/throughput.rs with aiohttp or openai; started by scripts/bench/pipelines.

`pipelines_peer.py aiohttp|openai URL CONCURRENCY REQUESTS` prints the time of all requests, without creating the client
and without an earlier request.
"""

import asyncio
import json
import sys
import time


def prompt(number: int) -> str:
    return f"Request {number}. " + "Say what it is about. " * 80


async def with_aiohttp(url: str, concurrency: int, n_requests: int) -> tuple:
    import aiohttp

    connector = aiohttp.TCPConnector(limit=concurrency)
    async with aiohttp.ClientSession(connector=connector) as session:
        async def ask(number: int) -> str:
            body = {"model": "served", "messages": [{"role": "user", "content": prompt(number)}], "temperature": 0.0, "max_tokens": 64}
            async with session.post(f"{url}/chat/completions", json=body) as reply:
                return (await reply.json())["choices"][0]["message"]["content"]

        return await timed(ask, concurrency, n_requests)


async def with_openai(url: str, concurrency: int, n_requests: int) -> tuple:
    import openai

    async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:
        async def ask(number: int) -> str:
            messages = [{"role": "user", "content": prompt(number)}]
            reply = await client.chat.completions.create(model="served", messages=messages, temperature=0.0, max_tokens=64)
            return reply.choices[0].message.content

        return await timed(ask, concurrency, n_requests)


async def timed(ask, concurrency: int, n_requests: int) -> tuple:
    numbers = iter(range(n_requests))
    texts = []

    async def worker():
        for number in numbers:
            texts.append(await ask(number))

    begun = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return time.perf_counter() - begun, len(texts)


if __name__ == "__main__":
    side, url, concurrency, n_requests = sys.argv[1:]
    ask = {"aiohttp": with_aiohttp, "openai": with_openai}[side]
    seconds, n_replies = asyncio.run(ask(url, int(concurrency), int(n_requests)))
    print(json.dumps({"seconds": seconds, "n_replies": n_replies}))
