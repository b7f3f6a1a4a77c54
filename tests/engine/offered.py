"""Jobs that are offered to lanes, and where these leave what has ended."""

import os
import select
import time
from typing import Any

import numpy as np

from asyncnn.engine import job as jobs
from asyncnn.engine.job import Control, IControl, Job
from asyncnn.hal.operations.bound import Array
from asyncnn.qos import Pause
from asyncnn.qos.native_lanes import Ended, ILane
from tests.engine.scripted import BuiltGraph, arrays, engine

LIMIT_S = 20


class Desk:
    """A port with a descriptor, and lanes that leave there what has ended."""

    def __init__(self) -> None:
        engine()
        self.fd = os.eventfd(0, os.EFD_NONBLOCK)
        assert jobs.LanePort is not None
        self.port = jobs.LanePort(self.fd)
        self.lanes: list[ILane] = []
        self.ended: dict[Any, Ended] = {}

    def lane(self, name: str = "lane", nice: int = 0) -> ILane:
        self.lanes.append(self.port.lane(name, nice))
        return self.lanes[-1]

    def wait(self, count: int = 1) -> list[Any]:
        """Return the next ``count`` tokens."""
        tokens: list[Any] = []
        while len(tokens) < count:
            assert select.select([self.fd], [], [], LIMIT_S)[0], "nothing has ended"
            drained: list[Ended] = []
            self.port.drain(drained)
            for ended in drained:
                tokens.append(ended[0])
                self.ended[ended[0]] = ended
        assert len(tokens) == count
        return tokens

    def outcome(self, token: object = "token") -> int:
        """Return how the run of ``token`` ended, or raise what it has raised."""
        _, outcome, *_ = self.ended.pop(token)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def close(self) -> None:
        for lane in self.lanes:
            lane.close()
        due = time.monotonic() + LIMIT_S
        while not all(lane.has_ended for lane in self.lanes):
            assert time.monotonic() < due
            time.sleep(0.0001)
        os.close(self.fd)


class Links:
    """A job of so many graphs, each of which adds its number."""

    def __init__(self, links: int = 1, elements: int = 4) -> None:
        assert Job is not None
        self.graphs = [BuiltGraph(number + 1, elements) for number in range(links)]
        middles = [np.zeros(elements, np.float32) for _ in range(links - 1)]
        ends = [0, *middles, 1]
        parts = zip(self.graphs, ends, ends[1:], strict=False)
        self.job = Job(tuple((graph, (a,), (b,)) for graph, a, b in parts), 2)
        self.total = links * (links + 1) // 2
        self.elements = elements

    def offer(
        self,
        lane: ILane,
        token: object = "token",
        deadline_ns: int | None = None,
        review_ns: int | None = None,
        control: IControl | None = None,
        pause: Pause | None = None,
        given: tuple[Array, Array] | None = None,
    ) -> tuple[IControl, Array, Array]:
        x, y = given or arrays(self.elements)
        control = control or Control()
        more = (deadline_ns, pause or Pause(), review_ns)
        self.job.offer(lane, token, (x, y), control, *more)
        return control, x, y
