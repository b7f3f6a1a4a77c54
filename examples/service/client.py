"""Sends the held-out digits to the web application, many at a time.

While the application has no driver, it waits as long as it is told and asks again.

usage: client.py [URL] [IMAGES]
"""

import asyncio
import sys
import time
from http import HTTPStatus

import httpx
import numpy as np

from asyncnn.tools.demo import load_digits_test

AT_ONCE = 8


async def main(url: str, count: int) -> float:
    """Print how many of ``count`` images are classified rightly."""
    images, labels = load_digits_test()
    images = np.resize(images, (count, *images.shape[1:]))
    labels = np.resize(labels, count)
    turn = asyncio.Semaphore(AT_ONCE)
    repeated = 0
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:

        async def ask(image: list[list[int]]) -> int:
            nonlocal repeated
            async with turn:
                answer = await client.post("/classify", json=image)
                while answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
                    await asyncio.sleep(float(answer.headers["retry-after"]))
                    repeated += 1
                    answer = await client.post("/classify", json=image)
            answer.raise_for_status()
            return int(answer.json()["digit"])

        await client.get("/health")
        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(ask(image.tolist())) for image in images]
        seconds = time.perf_counter() - started
    found = [task.result() for task in asked]
    share = float((labels == found).mean())
    rate = len(found) / seconds
    again = f", {repeated} asked again" if repeated else ""
    print(f"{share:.1%} of {len(found)} right, {rate:.0f} per second{again}")
    return share


if __name__ == "__main__":
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 360
    try:
        sys.exit(asyncio.run(main(url, count)) < 0.95)
    except httpx.ConnectError as error:
        sys.exit(f"client.py: {url}: {error}")
