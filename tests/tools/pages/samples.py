"""Pages that have all parts, and names that are markup."""

from random import Random

from asyncnn.tools.pages import (
    Bars,
    Column,
    Distributions,
    DrawnGraph,
    DrawnNode,
    History,
    Judged,
    Page,
    SortableTable,
    Text,
)

HOSTILE = '</script></title><img src=x onerror="document.title=1">&\u2028\'"{{'
"""Would run a script, or end one, wherever it is taken for markup."""


def table() -> SortableTable:
    """Return one whose rows are in no order, with values that were not measured."""
    return SortableTable(
        title="Latency",
        columns=[
            Column("model"),
            Column("p50", "us", help="median"),
            Column("runs"),
            Column("goal"),
        ],
        rows=[
            ["model 10", 9.5, 100, Judged("1.2 <= 2", True, 1.2)],
            ["model 9", None, 12_000, Judged("-")],
            ["Model 11", 1234.5, 7, Judged("11 <= 2", False, 11.0)],
            ["model 2", 10.25, 3, None],
        ],
        note="Medians.",
    )


def graph(name: str = "n") -> DrawnGraph:
    """Return one with a branch that is passed by an edge over three layers."""
    labels = ["INPUT", "CONV_2D\n80 us", "RELU", "ADD\n20 us", "SOFTMAX"]
    pairs = [(0, 1), (1, 2), (2, 3), (0, 3), (3, 4)]
    return DrawnGraph(
        title="Operations",
        nodes=[
            DrawnNode(
                name=f"{name}{number}",
                label=label,
                share=0.8 if number == 1 else 0.0,
                details={"kernel": f"kernel {number}"},
                group="partition 0" if number < 3 else "partition 1",
            )
            for number, label in enumerate(labels)
        ],
        edges=[(f"{name}{a}", f"{name}{b}", "1x4") for a, b in pairs],
    )


def whole() -> Page:
    """Return a page of all parts."""
    random = Random(5)
    series = {
        name: [us * random.lognormvariate(0, 0.3) for _ in range(600)]
        for name, us in (("async", 300), ("LiteRT", 2000))
    }
    return Page(
        title="A page",
        parts=[
            Text("First.\n\nSecond."),
            table(),
            Distributions(title="Latencies", unit="us", series=series),
            Bars(
                title="Devices",
                unit="us",
                groups={
                    "one": {"reference": 1000.0, "accelerated": 10.0},
                    "two": {"accelerated": 5.0, "failed": None},
                },
            ),
            History(
                title="Runs",
                unit="us",
                runs=["Monday", "Tuesday", "Wednesday"],
                series={"one": [10.0, None, 30.0], "two": [1.0, 2.0, 3.0]},
            ),
            graph(),
        ],
        circumstances=["5 rounds", "this machine"],
    )


def hostile() -> Page:
    """Return a page of all parts whose every name and text is `HOSTILE`."""
    other = HOSTILE + "2"
    return Page(
        title=HOSTILE,
        parts=[
            Text(HOSTILE),
            SortableTable(
                title=HOSTILE,
                columns=[Column(HOSTILE, HOSTILE, help=HOSTILE)],
                rows=[[HOSTILE], [Judged(HOSTILE, True)]],
                note=HOSTILE,
            ),
            Distributions(
                title=HOSTILE,
                unit=HOSTILE,
                series={HOSTILE: [1.0, 2.0], other: [3.0]},
                note=HOSTILE,
            ),
            Bars(
                title=HOSTILE,
                unit=HOSTILE,
                groups={HOSTILE: {HOSTILE: 1.0, other: 3.0}},
                note=HOSTILE,
            ),
            History(
                title=HOSTILE,
                unit=HOSTILE,
                runs=[HOSTILE],
                series={HOSTILE: [1.0]},
                note=HOSTILE,
            ),
            DrawnGraph(
                title=HOSTILE,
                nodes=[
                    DrawnNode(
                        name=name,
                        label=name,
                        share=1.0,
                        details={HOSTILE: HOSTILE},
                        group=HOSTILE,
                    )
                    for name in (HOSTILE, other)
                ],
                edges=[(HOSTILE, other, HOSTILE)],
                note=HOSTILE,
            ),
        ],
        circumstances=[HOSTILE],
    )
