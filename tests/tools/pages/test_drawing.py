"""Pages as text: they refer to nothing outside, and can be read again."""

import math
import re
from html.parser import HTMLParser

import pytest

from asyncnn.tools.pages import (
    Bars,
    Column,
    Distributions,
    DrawnGraph,
    DrawnNode,
    History,
    Judged,
    Page,
    Part,
    SortableTable,
)
from asyncnn.tools.pages.drawing import draw, load_page
from asyncnn.tools.pages.scales import DASH
from tests.tools.pages.samples import HOSTILE, hostile, table, whole


class Elements(HTMLParser):
    """Collects what a browser takes for elements, and what it takes for text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def of(self, tag: str, kind: str = "") -> list[dict[str, str | None]]:
        return [
            given
            for name, given in self.found
            if name == tag and kind in [*(given.get("class") or "").split(), ""]
        ]


def alone(part: Part) -> str:
    return draw(Page(title="t", parts=[part]))


@pytest.mark.parametrize("page", [whole(), hostile()], ids=["whole", "hostile"])
class TestEveryPage:
    def test_it_refers_to_nothing_outside(self, page: Page) -> None:
        html = draw(page)
        assert not re.search(r"https?:|@import|url\(|<iframe|<object", html)
        links = [given for tag, given in Elements(html).found if tag == "link"]
        assert links == [{"rel": "icon", "href": "data:,"}]
        for tag, given in Elements(html).found:
            assert not {"src", "srcset", "onerror", "onclick"} & given.keys(), tag
            assert tag != "a" or str(given["href"]).startswith("#part-")

    def test_no_policy_admits_more_than_the_one_script(self, page: Page) -> None:
        (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)"', draw(page))
        assert "default-src 'none'" in policy
        assert re.search(r"script-src 'sha256-[\w+/=]{44}'$", policy)

    def test_it_is_read_again_and_drawn_the_same(self, page: Page) -> None:
        html = draw(page)
        again = load_page(html)
        assert draw(again) == html
        assert again.title == page.title
        assert len(again.parts) == len(page.parts)


def test_names_that_are_markup_stay_text() -> None:
    html = draw(hostile())
    elements = Elements(html)
    assert not elements.of("img")
    scripts = html.count("<script")
    assert scripts == html.count("</script>") == 4
    assert elements.texts.count(HOSTILE) > 10
    assert "\u2028" not in html[html.index('id="data"') :]


def test_every_text_of_a_page_is_on_it() -> None:
    shown = "\n".join(Elements(draw(whole())).texts)
    for text in (
        *("A page", "First.", "Second.", "Latency", "Medians.", "p50", "model 10"),
        *("1.2 <= 2", "met", "missed", "async", "LiteRT", "Latencies", "reference"),
        *("Monday", "CONV_2D", "80 us", "partition 1", "5 rounds", "this machine"),
    ):
        assert text in shown, text


class TestTables:
    def test_numbers_have_the_digits_of_their_column(self) -> None:
        columns = [Column("name"), Column("a", digits=2), Column("b", digits=4)]
        rows = [["x", 1.2345, 1.2345], ["y", 123456, math.nan], ["z", None, math.inf]]
        html = alone(SortableTable(title="", columns=columns, rows=rows))
        cells = re.findall(r"<td.*?>(.*?)</td>", html)
        assert [cell.replace("\u202f", " ") for cell in cells] == (
            ["1.2", "1.234", "123 456", DASH, DASH, DASH]
        )

    def test_a_goal_says_whether_it_was_met(self) -> None:
        html = alone(table())
        assert '1.2 &lt;= 2 <span class="met">met</span>' in html
        assert '11 &lt;= 2 <span class="missed">missed</span>' in html
        assert '<td class="number">-</td>' in html

    def test_a_row_of_another_length_is_refused(self) -> None:
        with pytest.raises(ValueError, match="zip"):
            alone(SortableTable(title="", columns=[Column("a")], rows=[["x", 1]]))

    def test_one_without_rows_is_drawn(self) -> None:
        assert "<tbody></tbody>" in "".join(
            alone(SortableTable(title="", columns=[Column("a")], rows=[])).split("\n")
        )


class TestPlots:
    def test_a_curve_is_drawn_for_each_series_that_was_measured(self) -> None:
        series = {"a": [1.0, 2.0], "none": [], "nan": [math.nan, None], "b": [3.0]}
        html = alone(Distributions(title="", unit="us", series=series))
        curves = Elements(html).of("path", "line")
        assert [curve["data-series"] for curve in curves] == ["0", "3"]

    def test_the_axis_is_logarithmic_if_values_span_decades(self) -> None:
        def ticks(*values: float) -> list[str]:
            part = Distributions(title="", unit="", series={"a": values})
            feet = alone(part).split('<div class="feet">')[1].split("</div>")[0]
            return re.findall(r">([^<\n]+)</span>", feet)

        assert ticks(1, 10_000) == ["1", "10", "100", "1000", "10\u202f000"]
        assert ticks(1, 9) == ["0", "2", "4", "6", "8", "10"]

    def test_many_values_make_a_short_curve(self) -> None:
        values = [float(n) for n in range(50_000)]
        html = alone(Distributions(title="", unit="us", series={"a": values}))
        (curve,) = Elements(html).of("path", "line")
        assert len(str(curve["d"])) < 10_000

    def test_bars_are_as_long_as_the_logarithm_says(self) -> None:
        groups = {"g": {"a": 1.0, "b": 10.0, "c": 100.0, "d": 0.0, "e": None}}
        html = alone(Bars(title="", unit="us", groups=groups))
        widths = [str(bar["style"]) for bar in Elements(html).of("span", "bar")]
        assert widths == [f"width:{w}%" for w in ("33.33", "66.67", "100.00")] + (
            ["width:0.00%"] * 2
        )

    def test_a_series_has_one_colour_in_all_groups(self) -> None:
        groups = {"g": {"a": 1.0, "b": 2.0}, "h": {"b": 3.0}}
        html = alone(Bars(title="", unit="us", groups=groups))
        kinds = [str(bar["class"]) for bar in Elements(html).of("span", "bar")]
        assert kinds == ["bar c0", "bar c1", "bar c1"]

    def test_a_line_has_a_gap_where_nothing_was_measured(self) -> None:
        series = {"a": [1.0, 2.0, None, 3.0, math.nan, 4.0]}
        html = alone(History(title="", unit="", runs=list("uvwxyz"), series=series))
        curves = [str(c["d"]) for c in Elements(html).of("path", "line")]
        assert [curve.count("L") for curve in curves] == [1, 0, 0]

    @pytest.mark.parametrize(
        "part",
        [
            Distributions(title="", unit="", series={}),
            Distributions(title="", unit="", series={"a": [math.inf]}),
            Bars(title="", unit="", groups={"g": {"a": -1.0}}),
            History(title="", unit="", runs=[], series={}),
        ],
    )
    def test_nothing_measured_is_said(self, part: Part) -> None:
        assert "Nothing was measured." in alone(part)

    @pytest.mark.parametrize("value", [0.0, -3.0, 5.0])
    def test_one_value_is_drawn(self, value: float) -> None:
        part = Distributions(title="", unit="us", series={"a": [value]})
        assert 'class="line c0"' in alone(part)


class TestGraphs:
    def node(self, name: str) -> DrawnNode:
        return DrawnNode(name=name, label=name)

    def test_the_colour_is_relative_to_the_strongest(self) -> None:
        nodes = [DrawnNode(name=str(n), label="", share=n / 100) for n in range(3)]
        html = alone(DrawnGraph(title="", nodes=nodes, edges=[]))
        styles = [str(node["style"]) for node in Elements(html).of("g", "node")]
        assert styles == [f"--strength:{n}%" for n in ("0.0", "50.0", "100.0")]
        assert "share 0 %<i></i>2 %" in html

    def test_one_label_of_a_tensor_is_enough(self) -> None:
        nodes = [self.node(name) for name in "abc"]
        edges = [("a", "b", "1x4"), ("a", "c", "1x4")]
        html = alone(DrawnGraph(title="", nodes=nodes, edges=edges))
        assert len(Elements(html).of("text", "label")) == 1
        assert len(Elements(html).of("path", "edge")) == 2

    @pytest.mark.parametrize(
        ("names", "edges", "reason"),
        [
            ("aa", [], "two nodes of the graph have one name"),
            ("a", [("a", "b", "")], "the graph has no node 'b'"),
            ("ab", [("a", "b", ""), ("b", "a", "")], "in a circle"),
            ("a", [("a", "a", "")], "in a circle"),
        ],
    )
    def test_what_is_no_such_graph_is_refused(
        self, names: str, edges: list[tuple[str, str, str]], reason: str
    ) -> None:
        part = DrawnGraph(title="", nodes=[self.node(n) for n in names], edges=edges)
        with pytest.raises(ValueError, match=reason):
            alone(part)


class TestReading:
    def test_what_is_no_page_is_refused(self) -> None:
        with pytest.raises(ValueError, match="no page of asyncnn"):
            load_page("<html></html>")

    def test_a_changed_page_is_refused(self) -> None:
        changed = draw(whole()).replace('"type":"table"', '"type":"?"')
        with pytest.raises(ValueError, match="Invalid value '\\?'"):
            load_page(changed)

    def test_goals_and_integers_are_kept(self) -> None:
        (part,) = load_page(alone(table())).parts
        assert isinstance(part, SortableTable)
        assert part.rows[1][2] == 12_000
        assert part.rows[1][3] == Judged("-")


def test_short_texts_stay_on_a_line_and_the_first_cell_names_the_row() -> None:
    columns = Column("operation"), Column("kernel"), Column("us")
    rows = [(Judged("0: ADD", value=0.0), "LiteRT, segment 0", 1.5), (1, "x" * 40, 2)]
    html = alone(SortableTable(title="t", columns=columns, rows=rows))
    assert '<th scope="row">0: ADD</th><td class="short">LiteRT, segment 0</td>' in html
    assert '<th scope="row">1</th><td class="long">xx' in html
    assert '<th scope="col">operation</th>' in html
    assert '<th scope="col" class="number">us' in html


@pytest.mark.parametrize(
    "values", [[1e308, -1e308], [5e-324, 1e-300], [5e-324], [1e308, 1e-308]]
)
def test_values_at_the_end_of_floats_are_drawn(values: list[float]) -> None:
    """A report that is read may have any of them."""
    groups = {"g": dict(zip("ab", values, strict=False))}
    parts = (
        Distributions(title="t", unit="us", series={"a": values}),
        Bars(title="t", unit="us", groups=groups),
        History(title="t", unit="us", runs=["1", "2"], series={"a": values}),
    )
    page = Page(title="p", parts=parts)
    drawn = draw(page)
    assert draw(load_page(drawn)) == drawn
