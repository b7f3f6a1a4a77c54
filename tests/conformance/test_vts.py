"""All conformance vectors, through the public interface, on every path."""

from collections import Counter
from pathlib import Path

import pytest

from asyncnn.conformance.judging import PATHS
from asyncnn.conformance.running import CTS_ONLY, run_specs
from asyncnn.conformance.vectors import find_specs


@pytest.mark.slow
def test_every_vector_passes_on_every_path(shared: Path) -> None:
    specs = find_specs(shared / "vts")
    verdicts = [v for batch in run_specs(specs, list(PATHS)) for v in batch]
    failures = [
        f"{verdict.case} [{verdict.path}]: {'; '.join(verdict.details)}"
        for verdict in verdicts
        if verdict.outcome == "failed"
    ]
    assert not failures
    # Only what the client library alone has to take may be refused.
    refused = {v.spec.split("/")[0] for v in verdicts if v.outcome == "skipped"}
    assert all(folder.endswith(CTS_ONLY) for folder in refused)
    per_path = Counter(verdict.path for verdict in verdicts)
    assert per_path == dict.fromkeys(PATHS, 3098)
