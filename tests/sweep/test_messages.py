from typing import get_args, get_origin

from asyncnn.service import wire
from tests.sweep.scenarios_messages import EXCHANGES


def test_there_is_an_exchange_for_each_message_to_a_driver() -> None:
    messages = {get_origin(each) or each for each in get_args(wire.ToDriver)}
    assert set(EXCHANGES) == messages
