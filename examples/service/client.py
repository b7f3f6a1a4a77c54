"""Sends the held-out digits to the web application, many at a time.

usage: client.py [URL] [IMAGES]
"""

import asyncio
import sys
import time

import httpx

from asyncnn.demo.digits import load_digits_test

AT_ONCE = 8


async def main(url: str, count: int) -> float:
    """Print how many of the first ``count`` images are classified rightly."""
    images, labels = load_digits_test()
    images, labels = images[:count], labels[:count]
    turn = asyncio.Semaphore(AT_ONCE)
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:

        async def ask(image: list[list[int]]) -> int:
            async with turn:
                answer = await client.post("/classify", json=image)
            answer.raise_for_status()
            return int(answer.json()["digit"])

        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(ask(image.tolist())) for image in images]
        seconds = time.perf_counter() - started
    found = [task.result() for task in asked]
    share = float((labels == found).mean())
    print(f"{share:.1%} of {len(found)} right, {len(found) / seconds:.0f} per second")
    return share


if __name__ == "__main__":
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 360
    sys.exit(asyncio.run(main(url, count)) < 0.95)
