"""Downloads from a server of this machine that keeps ranges, cuts connections and lies, as told."""

import hashlib
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from suffuse.errors import InvalidInput, MissingExtra
from suffuse.research import datasets
from suffuse.research.datasets import download, fetch, list_public

CONTENT = b"".join(hashlib.sha256(bytes([i])).digest() for i in range(256)) * 200  # 1.6 MB
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """What it holds, how it misbehaves, and the headers of each request it saw."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {"/a.mat": CONTENT, "/empty": b""}
        self.seen = []
        self.ranges = True
        self.validators = {"ETag": '"one"'}
        self.cut_after = []  # bytes that each of the next answers sends before its connection ends
        self.length = None  # what Content-Length says, if not the truth; "" for none at all
        self.content_range = None  # what Content-Range says, if not the truth
        self.redirect = {}
        self.chunked = False  # send one chunk of 300,000 bytes, and end before the next

    def url(self, path="/a.mat"):
        return f"http://127.0.0.1:{self.server_address[1]}{path}"

    def handle_error(self, request, client_address):
        pass  # connections that are cut are what these tests are about


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        server.seen.append(dict(self.headers))
        if self.path in server.redirect:
            self.send_response(302)
            self.send_header("Location", server.redirect[self.path])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if self.path not in server.files:
            self.send_error(404)
            return
        content, start = server.files[self.path], 0
        wanted, condition = self.headers.get("Range"), self.headers.get("If-Range")
        if wanted and server.ranges and (condition is None or condition in server.validators.values()):
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206)
            told = server.content_range or f"bytes {start}-{len(content) - 1}/{len(content)}"
            self.send_header("Content-Range", told)
        else:
            self.send_response(200)
        for name, value in server.validators.items():
            self.send_header(name, value)
        if server.chunked and start == 0:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"%x\r\n" % 300_000 + content[:300_000] + b"\r\n")
            self.close_connection = True
            return
        length = str(len(content) - start) if server.length is None else server.length
        if length:
            self.send_header("Content-Length", length)
        self.end_headers()
        end = start + server.cut_after.pop(0) if server.cut_after else len(content)
        self.wfile.write(content[start:end])
        self.close_connection = True

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    running = Server()
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield running
    running.shutdown()
    thread.join()
    running.server_close()


def give_up(server, target, after):
    """Fetch in vain: the first answer ends early, the next ones bring nothing."""
    server.cut_after = [after, 0]
    with pytest.raises(InvalidInput, match=r"ended after \d+ bytes; fetch again to continue there"):
        download(server.url(), target)
    assert not target.exists()
    server.seen.clear()


def started_at(server):
    """Where each request began; a cut connection may cost the chunk that was on its way."""
    return [int(seen.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-")) for seen in server.seen]


def test_a_file_arrives_whole_with_its_hash_beside_it(server, tmp_path):
    steps = []
    found = download(server.url(), tmp_path / "a.mat", progress=lambda *step: steps.append(step))
    assert found.read_bytes() == CONTENT
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mat", "a.mat.sha256"]
    assert (tmp_path / "a.mat.sha256").read_text() == f"{SHA256}  a.mat\n"  # as sha256sum writes it
    assert steps[-1] == ("a.mat", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in steps] == sorted(done for _, done, _ in steps)


def test_a_file_whose_hash_is_known_arrives_alone(server, tmp_path):
    download(server.url(), tmp_path / "a.mat", sha256=SHA256)
    assert [path.name for path in tmp_path.iterdir()] == ["a.mat"]


def test_an_empty_file_arrives_too(server, tmp_path):
    assert download(server.url("/empty"), tmp_path / "empty").read_bytes() == b""


def test_a_file_that_is_there_is_not_fetched_again(server, tmp_path):
    (tmp_path / "a.mat").write_bytes(b"mine")
    assert download(server.url(), tmp_path / "a.mat").read_bytes() == b"mine"
    assert download(server.url(), tmp_path / "a.mat", sha256=hashlib.sha256(b"mine").hexdigest()).exists()
    assert server.seen == []
    with pytest.raises(InvalidInput, match=f"has the SHA-256 .*, expected {SHA256}; delete it and fetch again"):
        download(server.url(), tmp_path / "a.mat", sha256=SHA256)


def test_a_file_must_keep_the_hash_of_its_first_download(server, tmp_path):
    download(server.url(), tmp_path / "a.mat")
    (tmp_path / "a.mat").write_bytes(b"damaged")
    with pytest.raises(InvalidInput, match=f"expected {SHA256}; delete it and fetch again"):
        download(server.url(), tmp_path / "a.mat")
    (tmp_path / "a.mat").unlink()
    server.files["/a.mat"] = CONTENT[::-1]
    with pytest.raises(InvalidInput, match=f"has another SHA-256 than {SHA256}; it has changed, use another source"):
        download(server.url(), tmp_path / "a.mat")
    assert [path.name for path in tmp_path.iterdir()] == ["a.mat.sha256"]


def test_a_file_with_another_hash_than_the_known_one_is_refused(server, tmp_path):
    with pytest.raises(InvalidInput, match="has another SHA-256 than"):
        download(server.url(), tmp_path / "a.mat", sha256=hashlib.sha256(b"other").hexdigest())
    assert list(tmp_path.iterdir()) == []


def test_a_cut_connection_is_continued_where_it_ended(server, tmp_path):
    server.cut_after = [300_000, 500_000]
    assert download(server.url(), tmp_path / "a.mat").read_bytes() == CONTENT
    first, second, third = started_at(server)
    assert first == 0
    assert 300_000 - datasets._CHUNK_BYTES < second <= 300_000
    assert second + 500_000 - datasets._CHUNK_BYTES < third <= 800_000


def test_a_download_that_was_given_up_is_continued_by_the_next(server, tmp_path):
    give_up(server, tmp_path / "a.mat", 700_000)
    assert download(server.url(), tmp_path / "a.mat").read_bytes() == CONTENT
    (start,) = started_at(server)
    assert start > 600_000
    assert server.seen[0]["If-Range"] == '"one"'


def test_a_file_that_changed_meanwhile_is_begun_anew(server, tmp_path):
    give_up(server, tmp_path / "a.mat", 700_000)
    server.files["/a.mat"], server.validators = CONTENT[::-1], {"ETag": '"two"'}
    assert download(server.url(), tmp_path / "a.mat").read_bytes() == CONTENT[::-1]


def test_a_part_from_another_address_is_not_continued(server, tmp_path):
    give_up(server, tmp_path / "a.mat", 700_000)
    server.files["/other"] = CONTENT[::-1]
    assert download(server.url("/other"), tmp_path / "a.mat").read_bytes() == CONTENT[::-1]


def test_a_date_of_the_last_change_is_a_version_too(server, tmp_path):
    server.validators = {"Last-Modified": "Mon, 01 Jan 2018 00:00:00 GMT"}
    give_up(server, tmp_path / "a.mat", 700_000)
    assert download(server.url(), tmp_path / "a.mat").read_bytes() == CONTENT
    assert started_at(server)[0] > 600_000
    assert server.seen[0]["If-Range"] == "Mon, 01 Jan 2018 00:00:00 GMT"


@pytest.mark.parametrize("validators", [{}, {"ETag": 'W/"weak"'}])
def test_without_a_version_that_vouches_for_each_byte_a_file_is_begun_anew(server, tmp_path, validators):
    server.validators = validators
    give_up(server, tmp_path / "a.mat", 700_000)
    assert download(server.url(), tmp_path / "a.mat").read_bytes() == CONTENT
    assert started_at(server) == [0]


def test_a_server_without_ranges_starts_again(server, tmp_path):
    server.ranges = False
    server.cut_after = [300_000]
    assert download(server.url(), tmp_path / "a.mat").read_bytes() == CONTENT


def test_a_server_without_ranges_that_always_cuts_is_given_up(server, tmp_path):
    server.ranges = False
    server.cut_after = [300_000] * 5
    with pytest.raises(InvalidInput, match="the connection ended after"):
        download(server.url(), tmp_path / "a.mat")
    assert len(server.seen) == 2


def test_a_part_as_long_as_the_file_or_longer_is_begun_anew(server, tmp_path):
    for content in (CONTENT, b"short"):
        server.files["/a.mat"] = CONTENT
        give_up(server, tmp_path / "a.mat", 700_000)
        (tmp_path / ".a.mat.part").write_bytes(CONTENT)
        server.files["/a.mat"] = content
        assert download(server.url(), tmp_path / "a.mat").read_bytes() == content
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mat", "a.mat.sha256"]
        for path in tmp_path.iterdir():
            path.unlink()


def test_a_part_of_unknown_origin_is_begun_anew(server, tmp_path):
    for source in (None, "{", "", f"{server.url()}\n"):
        (tmp_path / "a.mat").unlink(missing_ok=True)
        (tmp_path / ".a.mat.part").write_bytes(b"who knows")
        if source is not None:
            (tmp_path / ".a.mat.source").write_text(source)
        assert download(server.url(), tmp_path / "a.mat").read_bytes() == CONTENT


@pytest.mark.parametrize("told", ["bytes 5-9/10", "nonsense"])
def test_a_range_that_was_not_asked_for_is_refused(server, tmp_path, told):
    give_up(server, tmp_path / "a.mat", 700_000)
    server.content_range = told
    with pytest.raises(InvalidInput, match=r"not what follows \d+ bytes; fetch it anew"):
        download(server.url(), tmp_path / "a.mat")
    server.content_range = None
    assert download(server.url(), tmp_path / "a.mat").read_bytes() == CONTENT


def test_a_server_that_promises_more_than_it_sends_never_gives_a_file(server, tmp_path):
    server.length = str(len(CONTENT) + 9)
    server.ranges = False
    with pytest.raises(InvalidInput, match="the connection ended after"):
        download(server.url(), tmp_path / "a.mat")
    assert not (tmp_path / "a.mat").exists()


def test_a_server_that_does_not_tell_the_length_is_believed_unless_the_hash_is_known(server, tmp_path):
    server.length = ""
    assert download(server.url(), tmp_path / "a.mat").read_bytes() == CONTENT
    assert download(server.url(), tmp_path / "b.mat", sha256=SHA256).read_bytes() == CONTENT
    server.cut_after = [300_000]
    with pytest.raises(InvalidInput, match="has another SHA-256 than"):
        download(server.url(), tmp_path / "c.mat", sha256=SHA256)


def test_a_stream_that_breaks_off_is_continued(server, tmp_path):
    server.chunked = True
    assert download(server.url(), tmp_path / "a.mat").read_bytes() == CONTENT
    assert len(server.seen) == 2


def test_a_file_that_is_not_there_is_told(server, tmp_path):
    with pytest.raises(InvalidInput, match="the server says 404 Not Found; try another address"):
        download(server.url("/nothing"), tmp_path / "a.mat")
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_cannot_be_reached_is_told(server, tmp_path):
    closed = Server()
    closed.server_close()
    with pytest.raises(InvalidInput, match=r"cannot be reached: .*; check the network, then fetch again"):
        download(closed.url(), tmp_path / "a.mat")


def test_what_cannot_be_written_is_told(server, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match=r"oxford5k_resnet.mat cannot be written: .*; choose another folder"):
        fetch("oxford5k-resnet", tmp_path / "file")


def test_a_missing_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(MissingExtra, match=r"pip install 'suffuse\[research\]'"):
        download("http://127.0.0.1/a.mat", tmp_path / "a.mat")


@pytest.mark.parametrize("url", ["ftp://x/a.mat", "file:///etc/passwd", "data:,x", "a.mat", "://"])
def test_only_http_is_spoken(tmp_path, url):
    with pytest.raises(InvalidInput, match="is not an address of http or https"):
        download(url, tmp_path / "a.mat")


@pytest.mark.parametrize("url", ["http://", "http://[x/a", "http://x:y/a", "http://é/ a", "http://127.0.0.1/é"])
def test_an_address_that_makes_no_sense_is_told(server, tmp_path, url):
    with pytest.raises(InvalidInput, match=r"cannot be (reached|fetched)"):
        download(url, tmp_path / "a.mat")


def test_redirections_are_followed_but_not_out_of_http(server, tmp_path):
    (tmp_path / "secret").write_text("secret")
    server.redirect = {"/good": server.url(), "/bad": f"file://{tmp_path}/secret", "/ftp": "ftp://127.0.0.1:9/x"}
    assert download(server.url("/good"), tmp_path / "a.mat").read_bytes() == CONTENT
    for path in ("/bad", "/ftp"):
        with pytest.raises(InvalidInput, match="cannot be fetched: No connection adapters"):
            download(server.url(path), tmp_path / "b.mat")
    assert not (tmp_path / "b.mat").exists()


def test_a_data_set_is_fetched_by_name_from_a_mirror(server, tmp_path):
    server.files = {"/mirror/oxford105k_siamac.mat": b"features", "/mirror/gnd_oxford5k.pkl": b"truth"}
    found = fetch("oxford105k-siamac", tmp_path / "new" / "folder", base=server.url("/mirror/"))
    assert [path.name for path in found] == ["oxford105k_siamac.mat", "gnd_oxford5k.pkl"]
    assert [path.read_bytes() for path in found] == [b"features", b"truth"]


def test_a_data_set_is_fetched_from_the_address_of_its_authors(server, tmp_path, monkeypatch):
    files = [{"url": server.url(), "sha256": SHA256}]
    monkeypatch.setattr(datasets, "list_public", lambda: {"tiny": {"title": "tiny", "files": files}})
    (found,) = fetch("tiny", tmp_path)
    assert (found.name, found.read_bytes()) == ("a.mat", CONTENT)
    found.write_bytes(b"damaged")
    with pytest.raises(InvalidInput, match=f"expected {SHA256}"):
        fetch("tiny", tmp_path)


def test_an_unknown_data_set_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(InvalidInput, match="no known data set 'oxford'; known are oxford5k-resnet, "):
        fetch("oxford", tmp_path)


def test_every_public_set_has_a_title_and_addresses_of_different_files():
    public = list_public()
    assert {"paris106k-resnet", "oxford5k-siamac", "roxford5k-gem", "paris6k-photographs"} <= set(public)
    for known in public.values():
        assert known["title"]
        assert all(set(file) <= {"url", "sha256"} for file in known["files"])
        assert all(file["url"].startswith(("http://", "https://")) for file in known["files"])
        names = [file["url"].rpartition("/")[2] for file in known["files"]]
        assert "" not in names
        assert len(set(names)) == len(names) >= 1
