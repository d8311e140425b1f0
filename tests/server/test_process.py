"""The verb serve in a process of its own: it starts, answers, stops when it is asked to, and says what is wrong."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import pytest
from tests.support import serving

from suffuse.cli import serve as serve_verb
from suffuse.errors import InvalidInput, InvalidParams, MissingExtra

PROGRAM = """
import logging, sys, typer
from suffuse.errors import SuffuseError
from suffuse.cli.serve import serve

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(serve)
try:
    app()
except SuffuseError as error:
    print("Error:", error, file=sys.stderr)
    sys.exit(1)
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return serving.build(tmp_path_factory.mktemp("process"))


def started(*arguments, **environment):
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)], stderr=subprocess.PIPE, text=True,
        env={**os.environ, **environment},
    )  # fmt: skip


def address_of(process):
    return re.search(r"at (http://\S+)/ ", process.stderr.readline())[1]


def read(address, **headers):
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers)) as answer:
        return answer.read()


def get(address, **headers):
    return json.loads(read(address, **headers))


def refusal(address, **headers):
    """The status of an answer that is none."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        read(address, **headers)
    refused.value.close()
    return refused.value.code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_it_is_asked_to_stop(path, number):
    process = started(path, "--port", 0)
    try:
        address = address_of(process)
        assert address.startswith("http://127.0.0.1:")
        assert get(address + "/api/info")["images"] == serving.N
        assert refusal(address + "/healthz", Host="evil.example") == 400
        process.send_signal(number)
        assert process.wait() == 0
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_a_request_that_has_begun_is_answered_before_it_stops(path):
    """The body is sent in two halves, and the signal between them."""
    process = started(path, "--port", 0)
    try:
        address = address_of(process)
        get(address + "/api/info")
        host, port = address.removeprefix("http://").split(":")
        body = json.dumps({"positive": [3]}).encode()
        with socket.create_connection((host, int(port))) as connection:
            head = ["POST /api/search HTTP/1.1", f"Host: {host}", "Content-Type: application/json", "Connection: close"]
            head += [f"Content-Length: {len(body)}", "", ""]
            connection.sendall("\r\n".join(head).encode() + body[:4])
            while b"suffuse_requests_in_flight 2" not in read(address + "/metrics"):
                pass
            process.send_signal(signal.SIGTERM)
            connection.sendall(body[4:])
            answer = b""
            while part := connection.recv(65536):
                answer += part
        assert answer.startswith(b"HTTP/1.1 200")
        assert process.wait() == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_the_token_may_come_from_the_environment(path):
    process = started(path, "--port", 0, SUFFUSE_TOKEN="abc")
    try:
        address = address_of(process)
        assert refusal(address + "/api/info") == 401
        assert get(address + "/api/info", Authorization="Bearer abc")["images"] == serving.N
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_the_token_may_be_in_a_file_that_others_cannot_read(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("SUFFUSE_TOKEN", raising=False)
    assert serve_verb._read_token(None) is None
    file = tmp_path / "token"
    file.write_text(" open sesame\n")
    file.chmod(0o600)
    assert serve_verb._read_token(file) == "open sesame"
    assert capsys.readouterr().err == ""
    file.chmod(0o644)
    serve_verb._read_token(file)
    assert "chmod 600" in capsys.readouterr().err
    monkeypatch.setenv("SUFFUSE_TOKEN", "other")
    assert serve_verb._read_token(file) == "open sesame"
    assert serve_verb._read_token(None) == "other"
    monkeypatch.setenv("SUFFUSE_TOKEN", " ")
    with pytest.raises(InvalidParams, match="SUFFUSE_TOKEN must not be empty"):
        serve_verb._read_token(None)
    for content in (b"", b"\n\n", b"one\ntwo", b"\xff\xfe"):
        file.write_bytes(content)
        with pytest.raises(InvalidInput, match="token"):
            serve_verb._read_token(file)
    with pytest.raises(InvalidInput, match="cannot be read"):
        serve_verb._read_token(tmp_path / "nothing")


def test_no_token_is_taken_from_the_command_line(path):
    process = started(path, "--port", 0, "--token", "secret")
    _, told = process.communicate()
    assert process.returncode != 0
    assert "No such option" in told


def test_a_port_that_is_taken_is_said(path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = started(path, "--port", taken.getsockname()[1])
        _, told = process.communicate()
    assert process.returncode == 1
    assert "choose another --port" in told
    assert "Traceback" not in told


def test_an_index_that_is_not_there_is_said(tmp_path):
    process = started(tmp_path / "nothing.index")
    _, told = process.communicate()
    assert process.returncode == 1
    assert "there is no index" in told
    assert "Traceback" not in told


def test_what_cannot_be_listened_on_is_refused(path):
    for port in (-1, 65536):
        with pytest.raises(InvalidParams, match="port must be"):
            serve_verb.serve(str(path), port=port)
    with pytest.raises(InvalidInput, match=r"cannot listen on 203\.0\.113\.1"):
        serve_verb.serve(str(path), host="203.0.113.1", port=0)


def test_without_the_extra_it_says_what_to_install(path, monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=r"pip install 'suffuse\[service\]'"):
        serve_verb.serve(path)


@pytest.mark.parametrize(("host", "local"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("example.org", False)])  # fmt: skip  # noqa: E501
def test_it_knows_which_addresses_are_this_machine_only(host, local):
    assert serve_verb._is_loopback(host) == local


def test_it_warns_when_everyone_can_see_the_pictures(path, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(serve_verb, "_run", lambda _app, _sock: None)
    serve_verb.serve(str(path), host="0.0.0.0", port=0)
    assert "choose a --token-file" in capsys.readouterr().err
    (tmp_path / "token").write_text("x\n")
    serve_verb.serve(str(path), host="0.0.0.0", port=0, token_file=tmp_path / "token")
    assert "choose a --token-file" not in capsys.readouterr().err


def test_the_page_opens_when_it_is_ready(path, monkeypatch):
    opened, ready = [], threading.Event()

    def open_page(address):
        opened.append(address)
        ready.set()

    monkeypatch.setattr(serve_verb.webbrowser, "open", open_page)
    monkeypatch.setattr(serve_verb, "_run", lambda _app, _sock: ready.wait())
    serve_verb.serve(str(path), port=0, open_page=True)
    assert opened[0].startswith("http://127.0.0.1:")
