from hypothesis import given
from hypothesis import strategies as st

from asyncnn.engine.arena import ALIGNMENT_BYTES, Lifespan, align, laying_out
from asyncnn.pacing import completed

lifespans = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(0, 20), st.integers(0, 20)), max_size=25
).map(
    lambda specs: [
        Lifespan(key, size, min(a, b), max(a, b))
        for key, (size, a, b) in enumerate(specs)
    ]
)


@given(lifespans)
def test_blocks_that_live_together_do_not_share_bytes(blocks: list[Lifespan]) -> None:
    layout = completed(laying_out(blocks))
    for one in blocks:
        start = layout.offsets[one.key]
        assert start % ALIGNMENT_BYTES == 0
        assert start + one.size_bytes <= layout.size_bytes
        for other in blocks:
            if other.key <= one.key:
                continue
            if one.last < other.first or other.last < one.first:
                continue
            begin = layout.offsets[other.key]
            assert start + one.size_bytes <= begin or begin + other.size_bytes <= start


@given(lifespans)
def test_the_arena_is_no_larger_than_all_blocks_side_by_side(
    blocks: list[Lifespan],
) -> None:
    assert completed(laying_out(blocks)).size_bytes <= sum(
        align(b.size_bytes) for b in blocks
    )


def test_a_chain_reuses_the_memory_of_what_is_dead() -> None:
    chain = [Lifespan(key, 1024, key, key + 1) for key in range(10)]
    assert completed(laying_out(chain)).size_bytes == 2 * 1024
