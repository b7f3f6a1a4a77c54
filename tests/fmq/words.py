"""The words of a queue as the other process sees and could write them."""

import contextlib
import mmap
from collections.abc import Iterator

from asyncnn.fmq import MessageQueue


@contextlib.contextmanager
def words_of(created: MessageQueue) -> Iterator[memoryview]:
    """Yield the counters and announcements of a queue that was created here."""
    with (
        mmap.mmap(created.descriptor.fds[0], 4096) as pages,
        memoryview(pages) as data,
        data.cast("Q") as words,
    ):
        yield words


def add_to_word(created: MessageQueue, word: int, change: int) -> None:
    """Do what no honest end does."""
    with words_of(created) as words:
        words[word] += change
