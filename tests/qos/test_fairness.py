"""Shares of lane time over any 200 ms, whatever priorities clients use.

ASYNCNN_SIMULATED_REQUESTS sets how many requests there are of each pattern.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence

import pytest

from asyncnn.hal.types import Priority
from asyncnn.qos.work import Client, User
from tests.qos.fairness import FloodedSimulation, Load, shares_of
from tests.qos.simulation import LONGEST_OPERATION_NS, MODELS_NS, SimulatedJob
from tests.qos.test_simulation import MS, POLICY, REQUESTS, SEED, SMALL

pytestmark = pytest.mark.unrecorded

LOW, MEDIUM, HIGH = Priority
LARGE = ["mobilenet_v1_224_int8"]

ALICE, BOB = User("alice"), User("bob", weight=2.0)


def client(user: User = ALICE, weight: float = 1.0) -> Client:
    return Client("flooding", user=user, weight=weight)


def each_at_one_priority() -> list[Load]:
    return [Load(client(), [priority], SMALL) for priority in Priority]


def large_models_at_high_beside_small_ones_at_low() -> list[Load]:
    return [Load(client(), [HIGH], LARGE), Load(client(), [LOW], SMALL)]


def many_connections_beside_one_that_has_one_request_at_a_time() -> list[Load]:
    return [
        Load(client(), [HIGH], SMALL, connections=64),
        Load(client(), [LOW], SMALL, depth=1),
    ]


def many_processes_of_one_user() -> list[Load]:
    crowd = [Load(client(), [HIGH], SMALL, depth=8) for _ in range(8)]
    return [*crowd, Load(client(BOB), [LOW], SMALL)]


def users_and_clients_by_weight() -> list[Load]:
    return [
        Load(client(ALICE, 3.0), [LOW], SMALL),
        Load(client(ALICE, 1.0), [HIGH], SMALL, connections=16),
        Load(client(BOB, 1.0), [MEDIUM], LARGE),
        Load(client(BOB, 2.0), list(Priority), [*SMALL, *LARGE]),
    ]


def periodic(
    rng: random.Random, clients: Sequence[Client], every_ns: int
) -> Iterator[tuple[int, SimulatedJob]]:
    """Urgent requests of these clients in turn, each about so long after the other."""
    now = 0
    for number in range(REQUESTS // 40):
        now += rng.randrange(every_ns // 2, 3 * every_ns // 2)
        yield now, SimulatedJob(SMALL[2], HIGH, clients[number % len(clients)])


Flood = Callable[[], list[Load]]

FLOODS: list[Flood] = [
    each_at_one_priority,
    large_models_at_high_beside_small_ones_at_low,
    many_connections_beside_one_that_has_one_request_at_a_time,
    many_processes_of_one_user,
    users_and_clients_by_weight,
]


@pytest.mark.parametrize("flood", FLOODS, ids=lambda flood: flood.__name__)
def test_nobody_gets_less_than_nine_tenths_of_its_share(flood: Flood) -> None:
    simulation = FloodedSimulation(POLICY, flood(), REQUESTS)
    simulation.flood()
    assert 0.9 <= min(simulation.least_shares().values()) < math.inf


@pytest.mark.parametrize("flood", FLOODS, ids=lambda flood: flood.__name__)
def test_urgent_work_of_an_idle_client_begins_at_the_next_boundary(
    flood: Flood,
) -> None:
    loads = flood()
    users = {load.client.user for load in loads}
    # A user that takes its whole share has no more for an urgent client.
    urgent = client(ALICE if len(users) == 1 else User("idle"))
    others = periodic(random.Random(SEED), [urgent], every_ns=40 * MS)
    simulation = FloodedSimulation(POLICY, loads, REQUESTS)
    simulation.flood(others)
    longest_ns = max(max(MODELS_NS[name]) for load in loads for name in load.models)
    assert 0 < simulation.most_waited_ns[urgent] <= longest_ns


def test_clients_that_come_and_go_leave_the_others_their_shares() -> None:
    loads = [Load(client(), [priority], SMALL) for priority in (LOW, MEDIUM)]
    passing = [client() for _ in range(4)]
    others = periodic(random.Random(SEED), passing, every_ns=5 * MS)
    simulation = FloodedSimulation(POLICY, loads, REQUESTS)
    simulation.flood(others)
    least = simulation.least_shares()
    assert min(least[load.client] for load in loads) >= 0.9


def test_inside_a_client_high_waits_for_one_operation_only() -> None:
    mixed = client()
    others = periodic(random.Random(SEED), [mixed], every_ns=20 * MS)
    simulation = FloodedSimulation(POLICY, [Load(mixed, [LOW], LARGE)], REQUESTS // 20)
    simulation.flood(others)
    assert simulation.worst_inversion_ns <= LONGEST_OPERATION_NS
    assert simulation.most_waited_ns[mixed] > LONGEST_OPERATION_NS


def test_time_by_weight_is_inside_that_of_the_user() -> None:
    loads = users_and_clients_by_weight()
    shares = shares_of([load.client for load in loads])
    assert [round(share * 36) for share in shares.values()] == [9, 3, 8, 16]
