"""A download is whole or it is not there, whatever the server and the disk do. Every test talks to a real server."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tacit.datasets import catalog
from tacit.datasets.catalog import Entry, File, Remote
from tacit.datasets.download import download, fetch_file
from tacit.datasets.errors import BrokenFileError, DownloadError, MissingDataError
from tacit.datasets.locate import obtain, read_checked

BODY = bytes(range(256)) * 4096  # one megabyte
SHA = hashlib.sha256(BODY).hexdigest()


class Server:
    """A web server on the loopback address whose behaviour a test sets."""

    def __init__(self) -> None:
        self.body = BODY
        self.ranges = True
        self.cut_after: list[int] = []  # bytes after which an answer ends early, one for each request
        self.announce: int | None = None
        self.announces = True
        self.status: int | None = None
        self.pause = 0.0
        self.asked: list[str | None] = []
        self.sent = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.answer(self)

            def log_message(self, *args: object) -> None:
                pass

        self.httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.httpd.daemon_threads = True
        self.thread = threading.Thread(target=self.httpd.serve_forever, daemon=True)
        self.thread.start()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        wanted = request.headers.get("Range")
        self.asked.append(wanted)
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.ranges else 0
        if self.status is not None or start >= len(self.body):
            request.send_error(self.status or 416)
            return
        body = self.body[start:]
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(self.body) - 1}/{len(self.body)}")
        if self.announces:
            request.send_header("Content-Length", str(self.announce or len(body)))
        request.end_headers()
        if self.cut_after:
            body = body[: self.cut_after.pop(0)]
        for at in range(0, len(body), 1 << 16):
            try:
                request.wfile.write(body[at : at + (1 << 16)])
                request.wfile.flush()
            except (BrokenPipeError, ConnectionResetError):
                return
            self.sent += len(body[at : at + (1 << 16)])
            time.sleep(self.pause)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.httpd.server_port}/body.bin"

    @property
    def remote(self) -> Remote:
        return Remote(self.url, len(BODY), SHA)


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = Server()
    yield server
    server.httpd.shutdown()
    server.httpd.server_close()


@pytest.fixture
def target(tmp_path):
    return tmp_path / "deep" / "body.bin"


def part(target):
    return target.with_name("body.bin.part")


def test_a_file_arrives_whole(server, target):
    seen = []
    download(server.remote, target, lambda done, total: seen.append((done, total)))
    assert target.read_bytes() == BODY
    assert not part(target).exists()
    assert seen[-1] == (len(BODY), len(BODY))
    assert seen == sorted(seen)


def test_a_broken_connection_is_taken_up_where_it_stopped(server, target):
    server.cut_after = [300_000, 200_000]
    download(server.remote, target)
    assert target.read_bytes() == BODY
    assert server.asked == [None, "bytes=300000-", "bytes=500000-"]
    deadline = time.monotonic() + 60  # the server counts a piece just after it has sent it
    while server.sent != len(BODY) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.sent == len(BODY)


def test_a_server_that_always_breaks_off_leaves_the_part_for_next_time(server, target):
    server.cut_after = [1000] * 4
    with pytest.raises(DownloadError, match=r"ended early; 4000 of 1048576 bytes are kept") as caught:
        download(server.remote, target)
    assert server.url in str(caught.value)
    assert part(target).stat().st_size == 4000
    assert not target.exists()
    download(server.remote, target)
    assert target.read_bytes() == BODY
    assert server.asked[-1] == "bytes=4000-"


def test_a_server_without_ranges_sends_the_whole_again(server, target):
    server.ranges = False
    server.cut_after = [300_000]
    download(server.remote, target)
    assert target.read_bytes() == BODY


def test_an_answer_that_does_not_announce_its_length_is_checked_all_the_same(server, target):
    server.announces = False
    server.cut_after = [300_000]
    download(server.remote, target)
    assert target.read_bytes() == BODY


def test_wrong_bytes_are_not_kept(server, target):
    server.body = BODY[:-1] + b"!"
    with pytest.raises(DownloadError, match="sha256 is not the known one"):
        download(server.remote, target)
    assert list(target.parent.iterdir()) == []


def test_a_part_of_another_file_does_not_end_up_in_the_file(server, target):
    target.parent.mkdir()
    part(target).write_bytes(b"x" * 5000)
    with pytest.raises(DownloadError, match="sha256 is not the known one"):
        download(server.remote, target)
    download(server.remote, target)
    assert target.read_bytes() == BODY


def test_a_part_that_is_too_long_is_thrown_away(server, target):
    target.parent.mkdir()
    part(target).write_bytes(BODY + b"more")
    download(server.remote, target)
    assert target.read_bytes() == BODY
    assert server.asked == [None]


def test_a_complete_part_is_checked_and_renamed_without_asking(server, target):
    target.parent.mkdir()
    part(target).write_bytes(BODY)
    download(server.remote, target)
    assert target.read_bytes() == BODY
    assert server.asked == []


@pytest.mark.parametrize("announces", [True, False])
def test_a_file_of_unknown_size_is_judged_by_its_sha256(server, target, announces):
    server.announces = announces
    remote = Remote(server.url, None, SHA)
    server.cut_after = [300_000] if announces else []
    download(remote, target)
    assert target.read_bytes() == BODY
    target.unlink()
    server.cut_after = [200_000] * 4
    with pytest.raises(DownloadError):
        download(remote, target)
    assert not target.exists()


def test_another_size_is_noticed_before_the_first_byte(server, target):
    server.body = BODY + b"more"
    with pytest.raises(DownloadError, match="announces 1048580 bytes where 1048576 are known"):
        download(server.remote, target)
    server.announces = False
    with pytest.raises(DownloadError, match="more than the known 1048576 bytes"):
        download(server.remote, target)
    assert list(target.parent.iterdir()) == []


@pytest.mark.parametrize("status", [404, 403, 500])
def test_a_refusal_names_the_address_and_the_status(server, target, status):
    server.status = status
    with pytest.raises(DownloadError, match=rf"{server.url} answered {status}"):
        download(server.remote, target)
    assert list(target.parent.iterdir()) == []


def test_nobody_answering_is_an_error_that_names_the_address(target):
    with pytest.raises(DownloadError, match=r"http://127\.0\.0\.1:1/x: .*refused"):
        download(Remote("http://127.0.0.1:1/x", 5, "0"), target)


def test_a_folder_that_cannot_be_made_is_named(server, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DownloadError, match=rf"cannot write {tmp_path}/file/body.bin"):
        download(server.remote, tmp_path / "file" / "body.bin")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_folder_that_is_read_only_is_named(server, tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(DownloadError, match=rf"cannot write {tmp_path}/body.bin: Permission denied"):
        download(server.remote, tmp_path / "body.bin")


CHILD = """
import sys
from pathlib import Path
from tacit.datasets.catalog import Remote
from tacit.datasets.download import download
from tacit.datasets.errors import DownloadError
{before}
try:
    download(Remote(sys.argv[1], int(sys.argv[2]), sys.argv[3]), Path(sys.argv[4]))
except DownloadError as error:
    sys.exit(str(error))
"""


def child(server, target, before=""):
    command = [sys.executable, "-c", CHILD.format(before=before), server.url, str(len(BODY)), SHA, str(target)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def test_a_disk_that_is_full_is_an_error_and_leaves_no_file(server, target):
    # The operating system refuses the write, as it does on a full disk; only this process has the limit.
    process = child(server, target, "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))")
    _, told = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"cannot write {target}: File too large" in told
    assert not target.exists()


def test_a_killed_download_goes_on_where_it_was(server, target):
    server.pause = 0.05
    process = child(server, target)
    while not (part(target).exists() and part(target).stat().st_size > 200_000):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stderr.close()
    assert not target.exists()
    kept = part(target).stat().st_size
    server.pause = 0.0
    download(server.remote, target)
    assert target.read_bytes() == BODY
    assert server.asked == [None, f"bytes={kept}-"]


def test_two_processes_at_once_fetch_one_good_file(server, target):
    server.pause = 0.01
    processes = [child(server, target) for _ in range(2)]
    for process in processes:
        _, told = process.communicate(timeout=60)
        assert process.returncode == 0, told
    assert target.read_bytes() == BODY
    assert server.asked == [None]


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_a_file_is_taken_out_of_its_archive(server, tmp_path, kind):
    inner = tmp_path / "inner.txt"
    inner.write_text("hello")
    archive = tmp_path / "a"
    if kind == "tar":
        with tarfile.open(archive, "w:gz") as bundle:
            bundle.add(inner, "folder/inner.txt")
    else:
        with zipfile.ZipFile(archive, "w") as bundle:
            bundle.write(inner, "folder/inner.txt")
    server.body = archive.read_bytes()
    sha = hashlib.sha256(server.body).hexdigest()
    remote = Remote(server.url, len(server.body), sha, member="folder/inner.txt")
    good = hashlib.sha256(b"hello").hexdigest()
    path = fetch_file(File("text/hello.txt", good, remote), tmp_path / "data")
    assert path.read_text() == "hello"
    with pytest.raises(BrokenFileError, match=r"its folder/inner.txt is not the known file"):
        fetch_file(File("text/other.txt", SHA, remote), tmp_path / "data")
    absent = Remote(server.url, len(server.body), sha, member="nowhere.txt")
    with pytest.raises(BrokenFileError, match=r"readable 'nowhere\.txt'"):
        fetch_file(File("text/other.txt", SHA, absent), tmp_path / "data")
    assert not (tmp_path / "data/text/other.txt").exists()


def set_of_two(server):
    files = (File("two/a.bin", SHA, server.remote), File("two/b.bin", SHA, server.remote))
    return Entry("two", "Two files", "table", {"all": 1}, "row", "none", "here", (files,))


def test_what_is_absent_is_downloaded_to_the_named_folder_and_found_again(server, empty_home):
    entry = set_of_two(server)
    folder = empty_home / "mine"
    (folder / "two").mkdir(parents=True)
    (folder / "two/a.bin").write_bytes(BODY)
    found = obtain(entry, folder)
    assert found.paths == (folder / "two/a.bin", folder / "two/b.bin")
    assert len(server.asked) == 1  # the file that was there is not fetched again
    assert obtain(entry, folder, download=False) == found
    assert read_checked(entry.ways[0][1], found.paths[1]) == BODY


def test_downloads_go_to_the_cache_folder_when_none_is_named(server, empty_home, monkeypatch):
    monkeypatch.setenv("TACIT_DATA", str(empty_home / "shared"))
    found = obtain(set_of_two(server))
    assert found.folder == empty_home / "cache" / "tacit"
    assert not (empty_home / "shared").exists()


def test_a_failed_download_says_where_to_get_and_where_to_put_the_files(server, empty_home):
    server.status = 404
    with pytest.raises(DownloadError, match=r"answered 404.*Where to get it: .*Where to put it: .*two/a\.bin"):
        obtain(set_of_two(server))


def test_nothing_is_downloaded_when_that_is_not_wanted(server, empty_home):
    with pytest.raises(MissingDataError, match="Where to put it"):
        obtain(set_of_two(server), download=False)
    assert server.asked == []


def test_every_address_of_the_catalogue_has_a_size_and_a_sha256():
    for entry in catalog.CATALOG.values():
        for file in (f for way in (*entry.ways, *entry.extras.values()) for f in way):
            if file.remote is not None:
                assert file.remote.url.startswith(("https://", "http://fashion-mnist.s3-website"))
                assert file.remote.size is None or file.remote.size > 0
                assert len(file.remote.sha256) == 64
                assert file.sha256 is not None


def test_the_bar_is_shown_on_a_terminal_and_nowhere_else(server, target):
    import pty

    server.pause = 0.02
    leader, follower = pty.openpty()
    command = [sys.executable, "-c", BAR, server.url, str(len(BODY)), SHA, str(target.parent)]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    subprocess.run(command, stderr=follower, env=environment, check=True, timeout=60)
    os.close(follower)
    shown = os.read(leader, 1 << 16).decode()
    os.close(leader)
    assert "body.bin" in shown
    assert "MB" in shown
    assert target.read_bytes() == BODY

    target.unlink()
    quiet = subprocess.run(command, stderr=subprocess.PIPE, env=environment, check=True, timeout=60)
    assert quiet.stderr == b""


BAR = """
import sys
from pathlib import Path
from tacit.datasets.catalog import File, Remote
from tacit.datasets.download import fetch_file
remote = Remote(sys.argv[1], int(sys.argv[2]), sys.argv[3])
fetch_file(File("body.bin", sys.argv[3], remote), Path(sys.argv[4]))
"""
