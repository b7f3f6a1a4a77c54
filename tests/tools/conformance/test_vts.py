"""All conformance vectors, through the public interface, on every path."""

from collections import Counter
from pathlib import Path

import pytest

from asyncnn.hal.types import HalVersion
from asyncnn.tools.conformance.executing import PATHS
from asyncnn.tools.conformance.preparing import oldest_version
from asyncnn.tools.conformance.suite import CTS_ONLY, VectorRuns, run_spec, run_specs
from asyncnn.tools.conformance.vectors import find_specs, load_cases

EVERY = 40
"""Of so many files of vectors, sorted by release and name, one is in the sample."""


def test_a_sample_passes_on_every_path(shared: Path) -> None:
    specs = find_specs(shared / "vts")[::EVERY]
    verdicts = [
        v for batch in run_specs(specs, VectorRuns(paths=list(PATHS))) for v in batch
    ]
    assert [v for v in verdicts if v.outcome == "failed"] == []
    passed = Counter(v.path for v in verdicts if v.outcome == "passed")
    assert passed.keys() == set(PATHS)
    assert min(passed.values()) > 30


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
def test_every_vector_passes_on_every_path(shared: Path) -> None:
    specs = find_specs(shared / "vts")
    verdicts = [
        v for batch in run_specs(specs, VectorRuns(paths=list(PATHS))) for v in batch
    ]
    failures = [
        f"{verdict.case} [{verdict.path}]: {'; '.join(verdict.details)}"
        for verdict in verdicts
        if verdict.outcome == "failed"
    ]
    assert not failures
    # Only what the client library alone has to take may be refused.
    skipped = [verdict for verdict in verdicts if verdict.outcome == "skipped"]
    refused = [v for v in skipped if v.details[0].startswith("refused")]
    assert all(v.spec.split("/")[0].endswith(CTS_ONLY) for v in refused)
    not_carried = [v for v in skipped if v not in refused]
    assert {(v.path, v.details) for v in not_carried} == {
        ("burst", ("bursts have no loop timeout",))
    }
    assert len(not_carried) == 5
    per_path = Counter(verdict.path for verdict in verdicts)
    assert per_path == dict.fromkeys(PATHS, 3098)


@pytest.mark.parametrize(
    "specs",
    [
        pytest.param(slice(None, None, 40), id="some"),
        pytest.param(slice(None), id="all", marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize("is_served", [False, True], ids=["inprocess", "remote"])
def test_a_client_library_runs_what_drivers_may_refuse(
    shared: Path, is_served: bool, specs: slice
) -> None:
    found = find_specs(shared / "vts")
    loops = [spec for spec in found if spec.name.startswith("while")]
    run = VectorRuns(paths=list(PATHS), is_served=is_served, through_framework=True)
    verdicts = [verdict for batch in run_specs(loops[specs], run) for verdict in batch]
    assert len(verdicts) >= 40
    assert [v for v in verdicts if v.outcome != "passed"] == []


def test_some_pass_through_the_versions_that_they_were_written_for(
    shared: Path,
) -> None:
    run = VectorRuns(paths=["async"], oldest=True)
    for name in ("V1_0/add", "V1_1/mean", "V1_2/sqrt"):
        verdicts = run_spec(shared / "vts" / f"{name}.json.gz", run)
        assert {verdict.outcome for verdict in verdicts} == {"passed"}


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
def test_every_vector_passes_through_the_oldest_version_that_can_carry_it(
    shared: Path,
) -> None:
    specs = find_specs(shared / "vts")
    runs = run_specs(specs, VectorRuns(paths=["async"], oldest=True))
    verdicts = [verdict for batch in runs for verdict in batch]
    assert [v.case for v in verdicts if v.outcome == "failed"] == []
    cases = [case for spec in specs for case in load_cases(spec)]
    versions = Counter(oldest_version(case, "async") for case in cases)
    assert sum(versions.values()) == len(verdicts)
    assert all(versions[version] > 100 for version in list(HalVersion)[:4])
