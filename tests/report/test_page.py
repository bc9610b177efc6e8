"""The report shows what the card says and nothing else; the operator's page is another page."""

from __future__ import annotations

import html.parser
import json
import re
import shutil
import stat
import subprocess

import numpy as np
import pytest

from tacit import accounting as acc
from tacit.ledger import Ledger, OperatorLog, OperatorView, PrivateValueError
from tacit.report import Run, describe, make_card, make_page, to_json, write_page
from tacit.report.card import sources
from tacit.report.operator import make_operator_page, read_log, write_operator_page
from tests.report.common import run, shown, trained


@pytest.fixture(scope="module")
def card():
    return make_card(run(Ledger()))


@pytest.fixture(scope="module")
def page(card):
    return make_page(card)


class Reader(html.parser.HTMLParser):
    """The visible text of a page, each piece with the entry of the card that the elements around it name."""

    VOID = frozenset({"meta", "link", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[tuple[str, str | None]] = []
        self.pieces: list[tuple[str, str | None]] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("src", "href") and not (value or "").startswith(("data:", "#")):
                self.outside.append(f"{name}={value}")
        if tag not in self.VOID:
            self.stack.append((tag, dict(attrs).get("data-from")))

    def handle_startendtag(self, tag, attrs):
        pass  # a shape of a drawing: it holds no text

    def handle_endtag(self, tag):
        assert self.stack[-1][0] == tag, f"<{self.stack[-1][0]}> is closed by </{tag}>"
        self.stack.pop()

    def handle_data(self, data):
        if any(tag == "style" for tag, _ in self.stack) or not data.strip():
            return
        origin = next((path for _, path in reversed(self.stack) if path), None)
        self.pieces.append((data, origin))


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    assert reader.stack == []
    return reader


def test_every_value_on_the_page_comes_from_an_entry_of_the_card_that_is_charged_or_public(card, page):
    why = sources(card)
    reader = read(page)
    named = {origin for _, origin in reader.pieces if origin}
    assert len(named) > 60
    for origin in named:
        assert origin in why, f"{origin} is no entry of the card"
        assert why[origin].startswith(("charged to ", "public: "))
    # What stands outside such an element is fixed text: the same on the page of another run.
    other = read(make_page(make_card(Run("other", acc.PoissonSampled(acc.Gaussian(3.0), 0.02) * 50, delta=1e-7))))
    fixed = {text for text, origin in other.pieces if not origin}
    allowed = {"Privacy report: test <run>"} | set(why) | set(why.values())
    unexplained = [
        text
        for text, origin in reader.pieces
        if not origin and re.search(r"\d", text) and text not in fixed and text not in allowed
    ]
    shown_sources = [text for text in unexplained if text.startswith("Why these may be shown: public: ")]
    assert unexplained == shown_sources


def test_no_diagnostic_of_the_run_is_on_the_card_or_the_page():
    training = trained(Ledger())
    seen = training.diagnostics().reveal()
    assert seen["records"] > 0
    card = make_card(describe(training, "run"))
    text = to_json(card) + make_page(card)
    keys, numbers = set(), set()

    def walk(value):
        if isinstance(value, dict):
            keys.update(value)
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)
        elif isinstance(value, float):
            numbers.add(value)

    walk(json.loads(to_json(card)))
    assert len(keys) > 100
    assert len(numbers) > 100
    assert not keys & {"loss", "median_norm", "clipped_fraction", "norms", "losses"}
    # The clipped fraction is left out of this: round values like 0.5 are on the grid of the trade-off curve.
    for name in ("loss", "median_norm"):
        assert min(abs(seen[name] - number) for number in numbers) > 1e-9
        assert not shown(seen[name], text)
        assert shown(seen[name], text + f" {seen[name]:.8e}")


def test_a_report_is_made_from_a_release_only(card):
    with pytest.raises(PrivateValueError, match="made from a Release"):
        make_page(card.to_dict())


def test_the_headline_is_the_claim_of_the_card(card, page):
    shown = re.search(r'data-from="guarantee\.epsilon\.claimed">([^<]+)<', page)
    assert float(shown[1]) == json.loads(to_json(card))["guarantee"]["epsilon"]["claimed"]
    assert card["guarantee"]["claim"] in page


def test_the_page_needs_nothing_from_outside(page):
    assert read(page).outside == []
    assert "<script" not in page
    assert "default-src 'none'" in page


def test_what_a_user_wrote_is_shown_as_text(page):
    assert "test &lt;run&gt;" in page
    assert "sex = &lt;female&gt;" in page
    assert "<run>" not in page


def test_drawings_have_titles_descriptions_and_numbers(page):
    drawings = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(drawings) == 3
    for drawing in drawings:
        assert 'role="img"' in drawing
        assert re.search(r"<title[^>]*>[^<]+</title><desc[^>]*>[^<]{20,}</desc>", drawing)
        assert not re.search(r"nan|inf", drawing)
    assert page.count("The same in numbers") == 3


@pytest.mark.parametrize(
    "mechanism",
    [acc.Gaussian(0.0), acc.PureDP(0.1), acc.Gaussian(100.0), acc.Gaussian(0.05), acc.Laplace(1.0) * 3],
    ids=repr,
)
def test_any_mechanism_has_a_page(mechanism):
    text = make_page(make_card(Run("any", mechanism, delta=1e-6)))
    read(text)
    assert not re.search(r'[xy12d]="[^"]*(nan|inf)', text)


# -- the operator's page -----------------------------------------------------------------------------------------------


@pytest.fixture
def views():
    edges = [0.1, 0.5, 1.0, 2.0, 10.0]
    return [
        OperatorView(step=s, loss=1 / s, clipped_fraction=0.5, norm_edges=edges, norm_counts=[1, 2, s, 0])
        for s in range(1, 9)
    ]


def test_the_operators_page_marks_every_diagnostic(card, views, tmp_path):
    log = OperatorLog(tmp_path / "operator.jsonl")
    for view in views:
        log.write(view)
    text = make_operator_page(card, read_log(log.path))
    read(text)
    drawings = len(re.findall("<svg", text))
    assert drawings == 3
    assert text.count('<span class="mark-warn">not covered by the guarantee</span>') == drawings
    assert "clip norm" in text
    assert "Do not publish" in text


def test_the_operators_page_is_for_its_owner_alone(card, views, tmp_path):
    path = tmp_path / "operator.html"
    path.write_text("old")
    path.chmod(0o644)
    write_operator_page(card, views, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(PrivateValueError, match="operator views"):
        make_operator_page(card, [{"loss": 1.0}])


# -- as a person sees it -----------------------------------------------------------------------------------------------

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium")


def chromium(tmp_path, *options: str) -> subprocess.CompletedProcess[str]:
    profile = tmp_path / f"profile-{len(list(tmp_path.iterdir()))}"
    fixed = [
        "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--enable-logging=stderr",
        f"--user-data-dir={profile}",
    ]  # fmt: skip
    return subprocess.run(
        [CHROMIUM, *fixed, *options], capture_output=True, text=True, timeout=120, check=True, cwd=tmp_path
    )


@browser
def test_the_page_opens_in_chromium_without_errors_and_shows_the_epsilon_of_the_card(card, tmp_path):
    path = write_page(card, tmp_path / "report.html")
    told = chromium(tmp_path, "--dump-dom", path.as_uri())
    assert "CONSOLE" not in told.stderr
    shown = re.search(r'data-from="guarantee\.epsilon\.claimed">([^<]+)<', told.stdout)
    assert float(shown[1]) == json.loads(to_json(card))["guarantee"]["epsilon"]["claimed"]


@browser
def test_a_page_with_an_error_would_be_noticed(tmp_path):
    path = tmp_path / "bad.html"
    path.write_text("<script>console.error('broken')</script>")
    assert "CONSOLE" in chromium(tmp_path, "--dump-dom", path.as_uri()).stderr


@browser
def test_screenshots_in_light_and_dark(card, tmp_path):
    image = pytest.importorskip("PIL.Image")
    path = write_page(card, tmp_path / "report.html")
    middle = {}
    for name, scheme in (("light", 1), ("dark", 0)):
        target = tmp_path / f"{name}.png"
        chromium(
            tmp_path,
            f"--blink-settings=preferredColorScheme={scheme}",
            "--window-size=1000,3000",
            f"--screenshot={target}",
            path.as_uri(),
        )
        with image.open(target) as shot:
            grey = np.asarray(shot.convert("L"))
        assert len(np.unique(grey)) > 50  # there is something on it
        middle[name] = np.median(grey)
    assert middle["light"] > 200
    assert middle["dark"] < 60
