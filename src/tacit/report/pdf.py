"""How does a report become a PDF? A browser of the Chromium family prints it, which is what made its style sheet."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tacit.report.files import write_whole

#: Programs that can print, in the order in which they are looked for.
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
#: It asks nothing of any network and leaves nothing behind.
OPTIONS = (
    "--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-quic", "--disable-extensions", "--no-pdf-header-footer",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)  # fmt: skip


class NoPrinter(RuntimeError):
    """There is no browser that can print, or it did not; the message says what to do."""


def browser() -> str:
    """The browser that prints.

    Raises:
        NoPrinter: If there is none.
    """
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        raise NoPrinter(
            "a PDF is printed by Chromium, and there is none on this machine: install it (apt-get install chromium), "
            "or open report.html in any browser and print it"
        )
    return found


def write_pdf(page: str | os.PathLike[str], path: str | os.PathLike[str], *, seconds: float = 120.0) -> Path:
    """Print a page to a PDF, completely or not at all.

    Args:
        page: The HTML file of the report.
        path: The PDF file. An existing file is replaced.
        seconds: How long the browser may take.

    Returns:
        The path of the PDF.

    Raises:
        NoPrinter: If there is no browser, or it fails.
    """
    program = browser()
    # Its sandbox needs an account that is not root; the page has no script and no outside resource.
    own = ("--no-sandbox",) if hasattr(os, "geteuid") and os.geteuid() == 0 else ()
    with tempfile.TemporaryDirectory(prefix="tacit-pdf-", ignore_cleanup_errors=True) as folder:
        made = Path(folder, "report.pdf")
        command = [program, *OPTIONS, *own, f"--user-data-dir={folder}/profile", f"--print-to-pdf={made}"]
        try:
            told = subprocess.run(
                [*command, Path(page).resolve().as_uri()], capture_output=True, text=True, timeout=seconds, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NoPrinter(f"{program} could not print the report: {error}") from None
        if not made.exists() or not made.read_bytes().startswith(b"%PDF"):
            last = (told.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise NoPrinter(f"{program} did not print the report: {last}")
        return write_whole(path, made.read_bytes())
