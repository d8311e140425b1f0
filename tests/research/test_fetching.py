"""Downloads from a server of this machine that keeps ranges, cuts connections and lies, as told."""

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from suffuse.errors import InvalidInput
from suffuse.research import fetching
from suffuse.research.fetching import KNOWN, Known, RemoteFile, download, fetch

CONTENT = b"".join(hashlib.sha256(bytes([i])).digest() for i in range(256)) * 200  # 1.6 MB


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


def cut_short(server, target, after):
    """Fetch in vain: the first answer ends early, the next brings nothing."""
    server.cut_after = [after, 0]
    with pytest.raises(InvalidInput, match=f"ended after {after} of {len(CONTENT)} bytes; fetch again to continue"):
        download(server.url(), target)
    assert not target.exists()
    server.seen.clear()


def test_a_file_arrives_whole_and_nothing_is_left_beside_it(server, tmp_path):
    steps = []
    found = download(server.url(), tmp_path / "a.mat", progress=lambda *step: steps.append(step))
    assert found.read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["a.mat"]
    assert steps[-1] == ("a.mat", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in steps] == sorted(done for _, done, _ in steps)


def test_an_empty_file_arrives_too(server, tmp_path):
    assert download(server.url("/empty"), tmp_path / "empty").read_bytes() == b""


def test_a_file_that_is_there_is_not_fetched_again(server, tmp_path):
    (tmp_path / "a.mat").write_bytes(b"mine")
    assert download(server.url(), tmp_path / "a.mat", 4).read_bytes() == b"mine"
    assert server.seen == []
    with pytest.raises(InvalidInput, match="has 4 bytes, expected 5; delete it"):
        download(server.url(), tmp_path / "a.mat", 5)


def test_a_cut_connection_is_continued_where_it_ended(server, tmp_path):
    server.cut_after = [300_000, 500_000]
    assert download(server.url(), tmp_path / "a.mat").read_bytes() == CONTENT
    assert [seen.get("Range") for seen in server.seen] == [None, "bytes=300000-", "bytes=800000-"]


def test_a_download_that_was_given_up_is_continued_by_the_next(server, tmp_path):
    cut_short(server, tmp_path / "a.mat", 700_000)
    assert download(server.url(), tmp_path / "a.mat").read_bytes() == CONTENT
    assert [(seen["Range"], seen["If-Range"]) for seen in server.seen] == [("bytes=700000-", '"one"')]


def test_a_file_that_changed_meanwhile_is_begun_anew(server, tmp_path):
    cut_short(server, tmp_path / "a.mat", 700_000)
    server.files["/a.mat"], server.validators = CONTENT[::-1], {"ETag": '"two"'}
    assert download(server.url(), tmp_path / "a.mat").read_bytes() == CONTENT[::-1]


def test_a_part_from_another_address_is_not_continued(server, tmp_path):
    cut_short(server, tmp_path / "a.mat", 700_000)
    server.files["/other"] = CONTENT[::-1]
    assert download(server.url("/other"), tmp_path / "a.mat").read_bytes() == CONTENT[::-1]


@pytest.mark.parametrize("validators", [{}, {"ETag": 'W/"weak"'}, {"Last-Modified": "Mon, 01 Jan 2018 00:00:00 GMT"}])
def test_servers_name_their_versions_in_several_ways(server, tmp_path, validators):
    server.validators = validators
    cut_short(server, tmp_path / "a.mat", 700_000)
    assert download(server.url(), tmp_path / "a.mat").read_bytes() == CONTENT
    assert server.seen[0]["Range"] == "bytes=700000-"
    assert server.seen[0].get("If-Range") == validators.get("Last-Modified")


def test_a_server_without_ranges_starts_again(server, tmp_path):
    server.ranges = False
    server.cut_after = [300_000]
    assert download(server.url(), tmp_path / "a.mat").read_bytes() == CONTENT


def test_a_server_without_ranges_that_always_cuts_is_given_up(server, tmp_path):
    server.ranges = False
    server.cut_after = [300_000] * 5
    with pytest.raises(InvalidInput, match="ended after 300000 of"):
        download(server.url(), tmp_path / "a.mat")
    assert len(server.seen) == 2


def test_a_part_that_is_already_whole_only_needs_its_name(server, tmp_path):
    cut_short(server, tmp_path / "a.mat", 700_000)
    (tmp_path / ".a.mat.part").write_bytes(CONTENT)
    assert download(server.url(), tmp_path / "a.mat").read_bytes() == CONTENT


def test_a_part_longer_than_the_file_is_begun_anew(server, tmp_path):
    cut_short(server, tmp_path / "a.mat", 700_000)
    server.files["/a.mat"] = b"short"
    assert download(server.url(), tmp_path / "a.mat").read_bytes() == b"short"


def test_a_part_without_its_note_is_begun_anew(server, tmp_path):
    for note in (None, "{", "[]"):
        (tmp_path / "a.mat").unlink(missing_ok=True)
        (tmp_path / ".a.mat.part").write_bytes(b"who knows")
        if note is not None:
            (tmp_path / ".a.mat.part.json").write_text(note)
        assert download(server.url(), tmp_path / "a.mat").read_bytes() == CONTENT


@pytest.mark.parametrize("told", ["bytes 5-9/10", "nonsense", f"bytes 700000-{len(CONTENT) - 1}/7"])
def test_a_range_that_was_not_asked_for_is_refused(server, tmp_path, told):
    cut_short(server, tmp_path / "a.mat", 700_000)
    server.content_range = told
    with pytest.raises(InvalidInput, match=r"wanted what follows 700000 of \d+ bytes; fetch again to start anew"):
        download(server.url(), tmp_path / "a.mat")
    server.content_range = None
    assert download(server.url(), tmp_path / "a.mat").read_bytes() == CONTENT


def test_a_file_of_the_wrong_size_is_refused_before_it_is_fetched(server, tmp_path):
    with pytest.raises(InvalidInput, match=f"has {len(CONTENT)} bytes, expected 12"):
        download(server.url(), tmp_path / "a.mat", 12)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_promises_more_than_it_sends_never_gives_a_file(server, tmp_path):
    server.length = str(len(CONTENT) + 9)
    server.ranges = False
    with pytest.raises(InvalidInput, match=f"ended after {len(CONTENT)} of {len(CONTENT) + 9} bytes"):
        download(server.url(), tmp_path / "a.mat")
    assert not (tmp_path / "a.mat").exists()


def test_a_server_that_does_not_tell_the_length_is_held_to_the_known_one(server, tmp_path):
    server.length = ""
    assert download(server.url(), tmp_path / "a.mat").read_bytes() == CONTENT
    assert download(server.url(), tmp_path / "b.mat", len(CONTENT)).read_bytes() == CONTENT
    with pytest.raises(InvalidInput, match=f"sent {len(CONTENT)} bytes, promised 12"):
        download(server.url(), tmp_path / "c.mat", 12)


def test_a_stream_that_breaks_off_is_continued_only_if_its_end_is_known(server, tmp_path):
    server.chunked = True
    with pytest.raises(InvalidInput, match="cannot be fetched: IncompleteRead"):
        download(server.url(), tmp_path / "a.mat")
    assert not (tmp_path / "a.mat").exists()
    assert download(server.url(), tmp_path / "b.mat", len(CONTENT)).read_bytes() == CONTENT


def test_a_file_that_is_not_there_is_told(server, tmp_path):
    with pytest.raises(InvalidInput, match="the server answers 404 Not Found; try another address"):
        download(server.url("/nothing"), tmp_path / "a.mat")
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_cannot_be_reached_is_told(server, tmp_path):
    closed = Server()
    closed.server_close()
    with pytest.raises(InvalidInput, match=r"cannot be reached: .*; check the network, then fetch again"):
        download(closed.url(), tmp_path / "a.mat")


def test_what_cannot_be_written_is_told(server, tmp_path):
    with pytest.raises(InvalidInput, match=r"cannot be fetched: .*No such file"):
        download(server.url(), tmp_path / "nowhere" / "a.mat")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="cannot be made a folder"):
        fetch("oxford5k-resnet", tmp_path / "file")


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
        with pytest.raises(InvalidInput, match=r"302|cannot be reached"):
            download(server.url(path), tmp_path / "b.mat")
    assert not (tmp_path / "b.mat").exists()


def test_a_data_set_is_fetched_by_name_from_a_mirror(server, tmp_path):
    server.files = {"/mirror/oxford105k_siamac.mat": b"features", "/mirror/gnd_oxford5k.pkl": b"truth"}
    found = fetch("oxford105k-siamac", tmp_path / "new" / "folder", base=server.url("/mirror/"))
    assert [path.name for path in found] == ["oxford105k_siamac.mat", "gnd_oxford5k.pkl"]
    assert [path.read_bytes() for path in found] == [b"features", b"truth"]


def test_a_data_set_is_fetched_from_the_address_of_its_authors(server, tmp_path, monkeypatch):
    tiny = Known("tiny", (RemoteFile("mine.mat", server.url(), len(CONTENT)),))
    monkeypatch.setitem(fetching.KNOWN, "tiny", tiny)
    (found,) = fetch("tiny", tmp_path)
    assert (found.name, found.read_bytes()) == ("mine.mat", CONTENT)


def test_an_unknown_data_set_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(InvalidInput, match="no known data set 'oxford'; known are oxford5k-resnet, "):
        fetch("oxford", tmp_path)


def test_every_known_file_has_an_address_that_ends_in_its_name():
    assert {"paris106k-resnet", "oxford5k-siamac", "roxford5k-gem", "paris6k-photographs"} <= set(KNOWN)
    for known in KNOWN.values():
        assert known.title
        for file in known.files:
            assert file.url.startswith(("http://", "https://"))
            assert file.url.rpartition("/")[2] == file.name
