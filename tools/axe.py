"""Can everybody use the studio? axe-core looks at every page: ``python -m tools.axe [axe.min.js]``.

Without a file it takes the copy in the PyPI package ``axe-core-python``; a newer one comes with ``npm install
axe-core`` in a folder of its own. Exit code 1 if it finds a serious or critical fault in a page, in the door of the
studio or in a report, narrow or wide, light or dark, of either language, as they open and after what people do.
"""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tools.webdriver import Browser

from tacit import accounting as acc
from tacit.ledger import Ledger
from tacit.report import Run, make_card, write_card, write_page

PAGES = ("cost", "cost?noise=x", "expected", "ledger", "ledger?noise=0.2", "runs", "runs/one", "schema")
#: What people do on a page before it is looked at again.
ACTS = """
for (const one of document.querySelectorAll('details')) one.open = true;
for (const box of document.querySelectorAll('input[name="compare[]"]')) box.click();
document.querySelector('[data-click="ledger/verify"]')?.click();
document.querySelector('[data-add]')?.click();
for (const field of document.querySelectorAll('[name="name[]"]')) {
  field.value = 'age'; field.dispatchEvent(new Event('input', {bubbles: true}));
}
"""
FINDS = "return axe.run().then(found => found.violations.map(v => [v.impact, v.id, v.nodes.length, v.nodes[0].html]))"


def script(path: str = "") -> str | None:
    """axe-core from a file, or from the PyPI package; None if there is neither."""
    if not path:
        found = importlib.util.find_spec("axe_core_python")
        if found is None or found.origin is None:
            return None
        path = str(Path(found.origin).with_name("axe.min.js"))
    return Path(path).read_text(encoding="utf-8")


def faults(
    browser: Browser, axe: str, addresses: list[str], acts: tuple[str, ...] = ("", ACTS)
) -> Iterator[tuple[str, str, str]]:
    """Every fault of some pages, as they open and after what people do: where, how bad, and what."""
    for address in addresses:
        browser.open(address)
        for act in acts:
            browser.settled()
            browser.run(act)
            browser.settled()
            browser.run(axe)
            for impact, name, count, html in browser.run(FINDS):
                yield address, impact, f"{name} ({count}): {html[:160]}"


def home(folder: Path) -> Path:
    """A ledger, two runs and a report in two languages."""
    ledger = Ledger(folder / "people.db")
    ledger.register("people", epsilon=3.0, delta=1e-5)
    with ledger.charge("people", acc.Gaussian(5.0), purpose="mean income"):
        pass
    for name in ("one", "two"):
        (folder / "runs" / name / "private").mkdir(parents=True)
        card = make_card(Run(name, acc.PoissonSampled(acc.Gaussian(2.0), 0.01) * 100, delta=1e-6))
        write_card(card, folder / "runs" / name / "privacy.json")
    for language in ("en", "de"):
        write_page(card, folder / f"report.{language}.html", language)
    return folder


@contextlib.contextmanager
def started(folder: Path) -> Iterator[str]:
    """A studio of a folder: the address that lets its reader in."""
    command = [sys.executable, "-m", "tacit", "studio", "--no-open", "--port", "0", "--ledger", "people.db"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as studio:
        try:
            assert studio.stdout is not None
            yield studio.stdout.readline().strip()
        finally:
            studio.terminate()


def main(path: str = "") -> int:
    """Print what axe finds; the number of serious faults, 1 at most."""
    axe, serious, looked = script(path), 0, 0
    if axe is None:
        sys.exit("there is no axe-core: pip install axe-core-python, or give the path of its axe.min.js")
    with tempfile.TemporaryDirectory() as made:
        folder = home(Path(made))
        with started(folder) as address:
            base = address.partition("/?")[0]
            pages = [base.replace("127.0.0.1", "localhost") + "/cost"]  # nobody is let in there: the door
            for language in ("en", "de"):
                pages += [f"{base}/{page}{'&' if '?' in page else '?'}lang={language}" for page in PAGES]
                pages.append((folder / f"report.{language}.html").as_uri())
            with Browser() as browser:
                browser.open(address)
                for width, dark in ((1200, False), (1200, True), (390, False), (390, True)):
                    browser.look(width, 900, dark=dark)
                    looked += 2 * len(pages)
                    for where, impact, what in faults(browser, axe, pages):
                        print(where, width, "dark" if dark else "light", impact, what)
                        serious += impact in ("serious", "critical")
    print(f"{serious} serious faults in {looked} views")
    return min(serious, 1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
