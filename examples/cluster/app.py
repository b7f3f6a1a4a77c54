"""Classifies digits on one device, on a driver process, or on a cluster.

python app.py [here | driver | ray://local | ray://auto | ray://HOST:PORT]
"""

import asyncio
import sys
from contextlib import AbstractAsyncContextManager

import asyncnn
from asyncnn.tools.demo import encode, load_digits_test, model_path


def opened(where: str) -> AbstractAsyncContextManager[asyncnn.Device]:
    """Return what opens the device: this is all that differs."""
    if where == "here":
        return asyncnn.open_device()
    if where == "driver":
        return asyncnn.connect(supervised=True)
    return asyncnn.open_device(where, replicas=2)


async def main(where: str = "here") -> None:
    """Run all images at once, each with a deadline, and tell how many were right."""
    images, labels = load_digits_test()
    async with opened(where) as device:
        model = await asyncnn.load_model(model_path("float"))
        prepared = await device.prepare(model, priority=asyncnn.Priority.HIGH)
        given = encode(images, prepared.inputs[0])
        runs = (prepared.run([each], timeout=30) for each in given)
        found = await asyncio.gather(*runs, return_exceptions=True)
        scores = [each[0] for each in found if isinstance(each, asyncnn.Outputs)]
        pairs = zip(scores, labels, strict=True)
        right = sum(int(each.argmax()) == label for each, label in pairs)
    print(f"{right / len(labels):.1%} of {len(labels)} right")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
