"""Can everybody use the studio? axe-core looks at every page: ``python -m tools.axe node_modules/axe-core/axe.min.js``.

axe-core is not part of the project: ``npm install axe-core`` in a folder of its own. Exit code 1 if it finds a serious
or critical fault in a page, narrow or wide, light or dark, of either language.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tools.webdriver import Browser

from tacit import accounting as acc
from tacit.ledger import Ledger
from tacit.report import Run, make_card, write_card

PAGES = ("cost", "expected", "ledger", "runs", "runs/one", "schema")
FINDS = "return axe.run().then(found => found.violations.map(v => [v.impact, v.id, v.nodes.length, v.nodes[0].html]))"


def main(axe: str) -> int:
    """Print what axe finds; the number of serious faults, 1 at most."""
    script, serious = Path(axe).read_text(encoding="utf-8"), 0
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        ledger = Ledger(home / "people.db")
        ledger.register("people", epsilon=3.0, delta=1e-5)
        with ledger.charge("people", acc.Gaussian(5.0), purpose="mean income"):
            pass
        (home / "runs" / "one" / "private").mkdir(parents=True)
        write_card(make_card(Run("one", acc.Gaussian(2.0), delta=1e-6)), home / "runs" / "one" / "privacy.json")
        command = [sys.executable, "-m", "tacit", "studio", "--no-open", "--port", "0", "--ledger", "people.db"]
        with subprocess.Popen(command, cwd=home, stdout=subprocess.PIPE, text=True) as studio:
            assert studio.stdout is not None
            address = studio.stdout.readline().strip()
            for width, dark in ((1200, False), (1200, True), (390, False)):
                with Browser(width, 900, dark=dark) as browser:
                    browser.open(address)
                    for page in PAGES:
                        for language in ("en", "de"):
                            browser.open(f"{address.partition('/?')[0]}/{page}?lang={language}")
                            browser.settled()
                            browser.run(script)
                            for impact, name, count, html in browser.run(FINDS):
                                print(
                                    page, language, width, "dark" if dark else "light", impact, name, count, html[:160]
                                )
                                serious += impact in ("serious", "critical")
            studio.terminate()
    print(f"{serious} serious faults")
    return min(serious, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
