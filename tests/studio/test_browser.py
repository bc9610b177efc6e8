"""The studio in a real browser: prices while typing, a run watched to its report, and no request leaves the machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from tools import axe
from tools.webdriver import Browser, programs

import tacit
from tacit import accounting as acc
from tacit.ledger import Ledger
from tacit.report import Run, make_card, write_card, write_page
from tacit.schema import Boolean, Numeric, Schema, Unit
from tacit.studio.shell import onward

pytestmark = pytest.mark.skipif(
    programs() is None, reason="no Chromium with its driver on this machine: apt-get install chromium chromium-driver"
)
HOSTILE = "<img src=x onerror=document.title='owned'>"
SCHEMA = Schema((Numeric("age", 0, 100), Boolean("old", target=True)), Unit("patient"), "clinic")


def train(folder, name, steps):
    age = np.random.default_rng(0).integers(18, 95, 2000)
    return tacit.run(
        {"age": age, "old": age > 60}, schema=SCHEMA, epsilon=3.0, delta=1e-6, steps=steps, batch=500, model="linear",
        runs=folder, name=name, quiet=True, purpose=HOSTILE, compile=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("studio")
    ledger = Ledger(folder / "people.db")
    ledger.register(HOSTILE, unit="record", epsilon=1.0, delta=1e-5)
    with ledger.charge(HOSTILE, acc.Gaussian(20.0), purpose=HOSTILE):
        pass
    return folder


@pytest.fixture(scope="module")
def address(home):
    """The address that the command prints."""
    command = [sys.executable, "-m", "tacit", "studio", "--no-open", "--port", "0", "--ledger", "people.db"]
    process = subprocess.Popen(command, cwd=home, stdout=subprocess.PIPE, text=True, env=os.environ)
    try:
        yield process.stdout.readline().strip()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(20)
        process.stdout.close()


@pytest.fixture(scope="module")
def browser(address, home):
    """Let in as the command does it: by a page of its own account's that goes on to the address."""
    (home / "open.html").write_text(onward(address))
    with Browser() as made:
        made.open((home / "open.html").as_uri())
        made.wait("return location.pathname === '/cost' && document.getElementById('noise') !== null")
        assert "token" not in made.run("return location.href")
        yield made


@pytest.fixture(scope="module")
def base(address):
    return address.partition("/?")[0]


def test_a_price_follows_the_keyboard_and_is_the_accountants(browser, base):
    browser.open(f"{base}/cost?noise=2&batch=100&records=10000&epochs=3&delta=1e-5")
    browser.settled()
    first = acc.epsilon(acc.PoissonSampled(acc.Gaussian(2.0), 0.01) * 300, 1e-5).upper
    shown = float(browser.run("return document.getElementById('epsilon').textContent"))
    assert first <= shown <= first + 2e-4
    browser.run("document.querySelector('input[type=range][data-for=noise]').focus()")
    browser.keys("\ue014")  # the right arrow
    browser.wait("return Number(document.getElementById('epsilon').textContent) !== arguments[0]", shown)
    browser.settled()
    noise = float(browser.run("return document.getElementById('noise').value"))
    assert noise > 2
    wanted = acc.epsilon(acc.PoissonSampled(acc.Gaussian(noise), 0.01) * 300, 1e-5).upper
    assert wanted <= float(browser.run("return document.getElementById('epsilon').textContent")) <= wanted + 2e-4
    assert f"noise={noise:g}" in browser.run("return location.search")  # the link restores it
    assert browser.run("return document.querySelectorAll('figure svg').length") == 2


def test_a_planned_run_that_does_not_fit_is_refused_on_the_page(browser, base):
    browser.open(f"{base}/ledger?noise=0.5&batch=100&records=10000&epochs=3")
    browser.settled()
    assert "Would be refused" in browser.run("return document.querySelector('[role=alert]').textContent")
    browser.run("document.querySelector('[data-click]').click()")
    browser.wait("return document.getElementById('verified').textContent.includes('Verified')")
    assert HOSTILE in browser.text()
    assert browser.run("return document.images.length") == 0
    assert "owned" not in browser.run("return document.title")


def test_what_was_chosen_comes_back_from_the_address_of_every_form(browser, base, home):
    type_in = """const [name, at, value] = arguments, field = document.querySelectorAll(`[name="${name}"]`)[at];
        field.value = value; field.dispatchEvent(new Event('input', {bubbles: true}));"""
    browser.open(f"{base}/schema")
    browser.run("document.querySelector('[data-add]').click()")
    typed = (("name[]", 0, "age"), ("lower[]", 0, "18"), ("upper[]", 0, "95"), ("name[]", 1, HOSTILE),
             ("kind[]", 1, "boolean"), ("target[]", 1, "yes"), ("ids", 0, "pid"), ("max_rows", 0, "3"))  # fmt: skip
    for name, at, value in typed:
        browser.run(type_in, name, at, value)
    browser.wait("return document.querySelector('.answer').innerText.includes('--max-rows 3')")
    browser.wait("return location.hash.includes('max_rows=3')")
    told, address = browser.run("return [document.querySelector('.answer').innerText, location.href]")
    browser.open(f"{base}/cost")
    browser.open(address)
    browser.settled()
    assert browser.run("return document.querySelector('.answer').innerText") == told
    for name, at, value in typed:
        assert (
            browser.run("return document.querySelectorAll(`[name='${arguments[0]}']`)[arguments[1]].value", name, at)
            == value
        )
    assert browser.run("return document.images.length") == 0
    browser.run("document.querySelector('[data-lang=de]').click()")
    browser.wait("return document.documentElement.lang === 'de' && document.querySelectorAll('fieldset').length === 2")
    card = make_card(Run("done", acc.Laplace(5.0), delta=1e-6))
    for name in ("first", "second"):
        (home / "runs" / name).mkdir(parents=True)
        write_card(card, home / "runs" / name / "privacy.json")
    browser.open(f"{base}/runs?lang=de#compare[]=first&compare[]=second")
    browser.wait("return document.querySelector('table.compare') !== null")
    assert browser.run("return document.querySelectorAll('input:checked').length") == 2


def test_what_is_wrong_is_said_once_and_its_field_is_marked(browser, base):
    browser.open(f"{base}/cost?lang=de&noise=zwei")
    browser.settled()
    alerts = "return [...document.querySelectorAll('[role=alert]')].map(x => x.innerText)"
    browser.wait("return document.querySelectorAll('[role=alert]').length === 1")
    assert browser.run(alerts) == ["Rauschfaktor: eine Zahl, nicht 'zwei'"]
    assert browser.run("return document.getElementById('noise').getAttribute('aria-invalid')") == "true"
    browser.run(
        "const f = document.getElementById('noise'); f.value = '2,5';"
        "f.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    browser.wait("return document.getElementById('epsilon') !== null")
    browser.settled()
    assert browser.run(alerts) == []
    assert browser.run("return document.getElementById('noise').getAttribute('aria-invalid')") is None


def test_a_run_is_watched_live_to_its_report(browser, base, home):
    worker = threading.Thread(target=train, args=(home / "runs", "live", 1500))
    worker.start()
    try:
        while not (home / "runs" / "live" / "private" / "progress.json").exists():
            assert worker.is_alive()
        browser.open(f"{base}/runs/live")
        seen = browser.wait("return document.querySelector('progress') && document.querySelector('progress').value")
        browser.wait("const p = document.querySelector('progress'); return !p || p.value > arguments[0]", seen)
        browser.wait("return document.body.innerText.includes('This run has ended')", seconds=90)
    finally:
        worker.join()
    assert HOSTILE in browser.text()
    browser.run("document.querySelector('a[target=_blank]').removeAttribute('target')")
    browser.run("document.querySelector('.answer a').click()")
    browser.wait("return document.title.startsWith('Privacy report')")
    assert "Twenty questions of an officer" in browser.text()
    assert browser.run("return document.images.length") == 0


def test_every_page_opens_in_both_languages_narrow_and_dark_and_asks_this_machine_only(address, base):
    with Browser(390, 844, dark=True) as phone:
        phone.open(address)
        for page in ("cost", "expected", "ledger", "runs", "schema"):
            for language in ("en", "de") if page in ("cost", "schema") else ("en",):
                phone.open(f"{base}/{page}?lang={language}")
                phone.settled()
                assert phone.run("return document.documentElement.lang") == language
                assert phone.run("return document.documentElement.scrollWidth - innerWidth") <= 0, page
                assert phone.run("return getComputedStyle(document.body).backgroundColor") == "rgb(16, 20, 26)"
        # What a page might try by itself is stopped by its policy.
        phone.run("const i = new Image(); i.src = 'http://192.0.2.1/x.png'; document.body.append(i)")
        phone.run(
            "const s = document.createElement('script'); s.textContent = 'document.title = 1'; document.body.append(s)"
        )
        phone.wait("return document.images[0].complete")
        assert phone.run("return document.title") != "1"
        asked = phone.asked()
        assert len(asked) > 30
        outside = [url for url in asked if not url.startswith((base, "data:", "chrome://", "chrome-untrusted://"))]
        assert outside in ([], ["http://192.0.2.1/x.png"])  # noted and blocked
        told = [entry["message"] for entry in phone.log("browser")]
        assert any("Content Security Policy" in message for message in told)


def test_axe_finds_no_serious_fault_on_any_page(browser, base, home):
    script = axe.script()
    if script is None:
        pytest.skip("no axe-core on this machine: pip install axe-core-python")
    card = make_card(Run("report", acc.Laplace(5.0), delta=1e-6))
    for width, dark, language in ((1200, False, "en"), (390, True, "de")):
        browser.look(width, 900, dark=dark)
        pages = [f"{base}/{page}?lang={language}" for page in ("cost", "expected", "ledger", "runs", "schema")]
        pages.append(write_page(card, home / f"report.{language}.html", language).as_uri())
        found = list(axe.faults(browser, script, pages, (axe.ACTS,)))
        assert not [fault for fault in found if fault[1] in ("serious", "critical")]
    browser.look(1200, 900)
    (home / "bad.html").write_text("<html><body><p style='color: #ddd; background: #fff'>pale</p></body></html>")
    found = list(axe.faults(browser, script, [(home / "bad.html").as_uri()], ("",)))
    assert any("color-contrast" in what for _, _, what in found)  # it would be noticed
