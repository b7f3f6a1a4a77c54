"""When which word was heard: lines as it happens, and a chart at the end."""

from collections.abc import Iterator, Sequence

from listener import CHUNK_SECONDS, Scores

_QUIET_SECONDS = 1.0
"""A word that was heard is not heard again before it was quiet for so long."""

_SHADES = " .:-=+*#%@"
_WIDTH = 60


class Timeline:
    """Scores chunk by chunk. ``scores`` are those of each word."""

    def __init__(self, words: Sequence[str], threshold: float) -> None:
        self.scores: dict[str, list[float]] = {word: [] for word in words}
        self._threshold = threshold
        self._last: dict[str, float] = {}
        self._chunks = 0

    def __len__(self) -> int:
        return self._chunks

    def add(self, scores: Scores) -> Iterator[str]:
        """Take the scores of the next chunk; yield a line for each word just heard."""
        self._chunks += 1
        now = self._chunks * CHUNK_SECONDS
        for word, score in scores.items():
            self.scores[word].append(score)
            if score < self._threshold:
                continue
            since = now - self._last.get(word, -_QUIET_SECONDS)
            self._last[word] = now
            if since >= _QUIET_SECONDS:
                yield f"{now:7.2f} s  {word}  {score:.2f}"

    def drawn(self) -> str:
        """Return a row for each word, darker where it is more likely."""
        width = max(map(len, self.scores), default=0)
        per_mark = max(1, -(-self._chunks // _WIDTH))
        lines = []
        for word, scores in self.scores.items():
            peaks = [
                max(scores[start : start + per_mark])
                for start in range(0, len(scores), per_mark)
            ]
            marks = [_SHADES[min(9, int(peak * 10))] for peak in peaks]
            lines.append(f"{word:>{width}} |{''.join(marks)}|")
        return "\n".join(lines)
