"""What the policy promises, over many simulated requests of several patterns.

ASYNCNN_SIMULATED_REQUESTS sets how many there are of each pattern: a million takes
about a minute each.
"""

import os
import random
from collections.abc import Callable, Iterator

import pytest

from asyncnn.hal.types import Priority
from asyncnn.qos.virtual_time import Policy
from asyncnn.qos.work import Client
from tests.qos.simulation import (
    LONGEST_OPERATION_NS,
    MODELS_NS,
    SimulatedJob,
    Simulation,
)

pytestmark = pytest.mark.unrecorded

LOW, MEDIUM, HIGH = Priority
REQUESTS = int(os.environ.get("ASYNCNN_SIMULATED_REQUESTS", "10000"))
SEED = 20260
MS = 1_000_000
POLICY = Policy()

Arrivals = Iterator[tuple[int, SimulatedJob]]

SMALL = ["ad01_fp32", "kws_ref_model", "pretrainedResnet", "vww_96_int8"]
MEAN_SMALL_NS = sum(sum(MODELS_NS[name]) for name in SMALL) / len(SMALL)
CLIENTS = [Client(f"client {n}", weight=1.0 + n % 3) for n in range(20)]


def poisson(rng: random.Random, load: float) -> Arrivals:
    """Independent requests of all priorities and clients, half of them dated."""
    now = 0.0
    for _ in range(REQUESTS):
        now += rng.expovariate(load / MEAN_SMALL_NS)
        due = int(now) + rng.randrange(1 * MS, 50 * MS) if rng.random() < 0.5 else None
        model, client = rng.choice(SMALL), rng.choice(CLIENTS)
        yield int(now), SimulatedJob(model, rng.choice(list(Priority)), client, due)


def bursts(rng: random.Random, load: float) -> Arrivals:
    """Up to 200 requests at one moment, then silence for as long as they take."""
    now, left = 0.0, REQUESTS
    while left:
        size = min(left, rng.randrange(1, 200))
        left -= size
        for _ in range(size):
            priority = rng.choice(list(Priority))
            due = int(now) + rng.randrange(1 * MS, 100 * MS)
            job = SimulatedJob(rng.choice(SMALL), priority, rng.choice(CLIENTS), due)
            yield int(now), job
        now += size * MEAN_SMALL_NS / load


def streams(rng: random.Random, load: float) -> Arrivals:
    """Frames at a steady rate with a deadline each, beside a large model at LOW."""
    period = MEAN_SMALL_NS / load
    for number in range(REQUESTS):
        at = int(number * period)
        if number % 200 == 0:
            yield at, SimulatedJob("mobilenet_v1_224_int8", LOW, CLIENTS[0])
        else:
            client = CLIENTS[1 + number % 4]
            due = at + rng.randrange(5 * MS, 20 * MS)
            yield at, SimulatedJob(rng.choice(SMALL), HIGH, client, due)


def flood(rng: random.Random, load: float) -> Arrivals:
    """HIGH alone exceeds what there is; others trickle in."""
    now = 0.0
    for number in range(REQUESTS):
        now += rng.expovariate(load / MEAN_SMALL_NS)
        if number % 50 == 0:
            priority, model = rng.choice([LOW, MEDIUM]), "mobilenet_v1_224_int8"
        else:
            priority, model = HIGH, rng.choice(SMALL)
        yield int(now), SimulatedJob(model, priority, rng.choice(CLIENTS))


PATTERNS = {
    "poisson at 70 %": (poisson, 0.7),
    "poisson at 110 %": (poisson, 1.1),
    "bursts at 90 %": (bursts, 0.9),
    "streams at 90 %": (streams, 0.9),
    "a flood of HIGH": (flood, 1.5),
}


@pytest.fixture(scope="module", params=PATTERNS)
def simulated(request: pytest.FixtureRequest) -> Simulation:
    pattern, load = PATTERNS[request.param]
    simulation = Simulation(POLICY)
    simulation.run(pattern(random.Random(SEED), load))
    return simulation


def test_each_request_ends_once(simulated: Simulation) -> None:
    accounted = simulated.ended + simulated.missed + simulated.refused
    assert accounted == simulated.arrived == REQUESTS


def test_nothing_waits_for_more_than_one_operation_of_lower_priority(
    simulated: Simulation,
) -> None:
    assert simulated.stops > 0
    assert simulated.worst_inversion_ns <= LONGEST_OPERATION_NS


def test_no_priority_starves_beyond_the_bound(simulated: Simulation) -> None:
    """Not counting the time of other clients."""
    starved_slice_ns = POLICY.starved_slice_ns + LONGEST_OPERATION_NS
    bound_ns = POLICY.starvation_limit_ns + LONGEST_OPERATION_NS + starved_slice_ns
    assert simulated.worst_starvation_ns <= bound_ns


def test_what_is_due_earlier_begins_earlier(simulated: Simulation) -> None:
    assert simulated.out_of_order == 0


def test_a_flood_leaves_the_others_their_slices() -> None:
    simulation = Simulation(POLICY)
    simulation.run(flood(random.Random(SEED), 1.5))
    least = simulation.now_ns / (POLICY.starvation_limit_ns + 10 * MS)
    assert simulation.starved_slices > least
    assert simulation.refused > 0


@pytest.mark.parametrize("lanes", [2, 8])
def test_inversion_is_bounded_on_several_lanes(lanes: int) -> None:
    simulation = Simulation(POLICY, lanes=lanes)
    simulation.run(poisson(random.Random(SEED), 1.05 * lanes))
    assert simulation.stops > 0
    assert simulation.worst_inversion_ns <= LONGEST_OPERATION_NS
    assert simulation.out_of_order == 0


def test_clients_that_compete_get_time_by_weight() -> None:
    rng = random.Random(SEED)
    simulation = Simulation(POLICY, max_waiting=REQUESTS)

    def arrivals() -> Arrivals:
        for number in range(2000):
            client = CLIENTS[number % len(CLIENTS)]
            yield 0, SimulatedJob(rng.choice(SMALL), MEDIUM, client)
        yield 20 * 5 * MS, SimulatedJob(SMALL[0], LOW, CLIENTS[0])

    shares: dict[Client, int] = {}
    original: Callable[[SimulatedJob], None] = simulation._arrive

    def measure_then_arrive(job: SimulatedJob) -> None:
        if job.priority == LOW:
            shares.update(simulation.served_ns)
        original(job)

    simulation._arrive = measure_then_arrive  # type: ignore[method-assign]
    simulation.run(arrivals())
    per_weight = [shares[client] / client.weight for client in CLIENTS]
    assert max(per_weight) - min(per_weight) <= 2 * POLICY.slice_ns


def test_deadlines_are_met_more_often_in_their_order_than_in_that_of_arrival() -> None:
    def share_missed(policy: Policy) -> float:
        rng = random.Random(SEED)
        client = CLIENTS[0]
        simulation = Simulation(policy)

        def arrivals() -> Arrivals:
            now = 0.0
            for _ in range(10_000):
                now += rng.expovariate(0.9 / MEAN_SMALL_NS)
                due = int(now) + rng.randrange(1 * MS, 20 * MS)
                yield int(now), SimulatedJob(rng.choice(SMALL), MEDIUM, client, due)

        simulation.run(arrivals())
        return (simulation.missed + simulation.late) / simulation.arrived

    by_deadline = share_missed(POLICY)
    by_arrival = share_missed(Policy(horizon_ns=0))
    assert by_deadline < by_arrival / 2
