"""The verb serve: an index as a page and as an HTTP API."""

import importlib.util
import ipaddress
import os
import signal
import socket
import threading
import urllib.parse
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from suffuse.cli.terminal import say
from suffuse.errors import InvalidInput, InvalidParams, MissingExtra

if TYPE_CHECKING:
    from fastapi import FastAPI

# Seconds that requests have to end when the service is stopped.
_GRACE = 10
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def serve(
    index: Annotated[str, Argument(metavar="INDEX", help="An index, or postgresql://USER@HOST/DATABASE of an export.")],
    host: Annotated[str, Option(help="The address to listen on; this one is for this machine only.")] = "127.0.0.1",
    port: Annotated[int, Option(help="The port; 0 for any that is free.")] = 8000,
    images: Annotated[Path | None, Option(metavar="FOLDER", help="Where the index's pictures are, if moved.")] = None,
    token_file: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="A file with the token that requests must show: Authorization: Bearer TOKEN. It also allows changes."
            " Or set the environment variable SUFFUSE_TOKEN.",
        ),
    ] = None,
    read_only: Annotated[bool, Option("--read-only", help="Take no changes, not even with the token.")] = False,
    cors: Annotated[list[str] | None, Option(metavar="ORIGIN", help="Whose pages may use the API; repeat it.")] = None,
    allow_host: Annotated[list[str] | None, Option(metavar="NAME", help="Its name behind a proxy; repeat it.")] = None,
    schema: Annotated[str, Option(help="The schema of the index in a database.")] = "suffuse",
    open_page: Annotated[bool, Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Serve an index: a page to look at, and an HTTP API (/docs describes it).

    Only this machine can reach it unless you choose another --host; then choose a token, too.
    """
    if not 0 <= port <= 65535:
        raise InvalidParams(f"port must be a whole number from 0 to 65535, got {port}")
    token = _read_token(token_file)
    _check_installed()
    from suffuse.server import create_app

    local = _is_loopback(host)
    hosts = {name.lower() for name in (*_LOOPBACK, *(allow_host or ()))} if local else None
    app = create_app(
        index, token=token, read_only=read_only, cors=cors or (), hosts=hosts, image_root=images, schema=schema
    )  # fmt: skip
    with _listen(host, port) as sock:
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{sock.getsockname()[1]}/"
        served = f"{_hide_secrets(index)} ({app.state.service.engine.summarize().images:,} images)"
        say(f"Serving {served} at {address} - stop it with Ctrl+C")
        if not local and token is None:
            say("Everyone who can reach this port can see the pictures; choose a --token-file")
        if open_page:
            _open_when_ready(app, address)
        _run(app, sock)


def _read_token(file: Path | None) -> str | None:
    """The token from its file, or from the environment; not from the command line, which all users here can see."""
    if file is None:
        token = os.environ.get("SUFFUSE_TOKEN")
        if token is not None and not token.strip():
            raise InvalidParams("SUFFUSE_TOKEN must not be empty; unset it to serve without a token")
        return None if token is None else token.strip()
    try:
        token = file.read_text(encoding="utf-8").strip()
        others = file.stat().st_mode & 0o077
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"the token cannot be read from {file}: {error}; write it there, as text") from error
    if not token or len(token.splitlines()) > 1:
        raise InvalidInput(f"{file} must hold one line, the token; found {len(token.splitlines())}")
    if others and os.name == "posix":
        say(f"Others on this machine may read the token; better: chmod 600 {file}")
    return token


def _hide_secrets(index: str) -> str:
    """An index without a password: of a URL only the host and the database, since it may be anywhere else."""
    if "://" not in index:
        return index
    url = urllib.parse.urlsplit(index)
    return f"{url.scheme}://{url.hostname or ''}{url.path}"


def _check_installed() -> None:
    for module in ("fastapi", "uvicorn", "orjson", "python_multipart", "PIL"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtra(module, "service")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens already, so that a port in use is an error before anything is loaded."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio switches off Nagle's delay, which would add 40 ms to every answer.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(128)
    except OSError as error:
        sock.close()
        raise InvalidInput(
            f"cannot listen on {host}, port {port}: {error.strerror or error}; choose another --port, or 0 for any"
        ) from error
    return sock


def _open_when_ready(app: "FastAPI", address: str) -> None:
    def wait() -> None:
        app.state.service.warm().result()
        webbrowser.open(address)

    threading.Thread(target=wait, daemon=True).start()


def _run(app: "FastAPI", sock: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM; requests that have begun are answered before it ends."""
    import uvicorn

    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=_GRACE,
        limit_concurrency=1000,
    )  # fmt: skip

    def ignore(_signal: int, _frame: Any) -> None:
        """uvicorn raises the signal again when it has stopped; but a request to stop is no failure."""

    before = {number: signal.signal(number, ignore) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        uvicorn.Server(config).run(sockets=[sock])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
