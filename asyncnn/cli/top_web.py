"""``asyncnn top --web``: the page that watches a driver, served over HTTP.

A driver's socket shows its statistics to its own user. A port of this machine is open
to all of its users, so that the address of the page has a secret in it, which is
printed for those who may have opened the socket. The page fetches one document again
and again, and nothing from elsewhere.
"""

import hmac
import secrets
from collections.abc import Callable
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path

import msgspec

from asyncnn.cli.options import console
from asyncnn.cli.top_changes import statistics_of
from asyncnn.cli.top_live import DriverWatch, LiveReport
from asyncnn.cli.top_terminal import ended_by_signals
from asyncnn.http_server import LOOPBACK, HttpRequest, HttpResponse, HttpServer

_OWN, _SHARED = files("asyncnn.cli") / "top_page", files("asyncnn.tools.pages")
_HTML, _CSS, _JS = (
    f"text/{kind}; charset=utf-8" for kind in ("html", "css", "javascript")
)
_FILES = {
    "": (_OWN / "index.html", _HTML),
    "page.css": (_SHARED / "page.css", _CSS),  # the look of all pages
    "top.css": (_OWN / "top.css", _CSS),
    "top.js": (_OWN / "top.js", _JS),
    "plots.js": (_OWN / "plots.js", _JS),
}
REPORT = "live.json"

_FIELDS = {
    # Scripts and styles of the page's own files alone: a name that is taken for
    # markup, by whatever mistake, could still do nothing.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; "
    "style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_ELSEWHERE = b"The page is at the address that asyncnn top --web printed.\n"


class LivePage:
    """Answers with the page's files and with what ``report`` returns, as JSON.

    All are below a path that nobody can guess.
    """

    def __init__(self, report: Callable[[], LiveReport]) -> None:
        self._report = report
        self._secret = secrets.token_urlsafe(16)
        self._files = {
            name: (file.read_bytes(), content_type)
            for name, (file, content_type) in _FILES.items()
        }

    @property
    def path(self) -> str:
        """The path of the page, with a slash at both ends."""
        return f"/{self._secret}/"

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """Return the answer to a request of `HttpServer`."""
        secret, _, name = request.path.removeprefix("/").partition("/")
        if not hmac.compare_digest(secret.encode(), self._secret.encode()):
            plain = {"Content-Type": "text/plain; charset=utf-8"}
            return HttpResponse(HTTPStatus.NOT_FOUND, _FIELDS | plain, _ELSEWHERE)
        if name == REPORT:
            body, content_type = msgspec.json.encode(self._report()), "application/json"
        elif name in self._files:
            body, content_type = self._files[name]
        else:
            return HttpResponse(HTTPStatus.NOT_FOUND, _FIELDS)
        fields = _FIELDS | {"Content-Type": content_type}
        return HttpResponse(HTTPStatus.OK, fields, body)


async def serve_page(
    path: Path, interval: float, port: int, host: str = LOOPBACK
) -> None:
    """Serve the page of the driver at ``path`` until a signal comes.

    :raises AsyncnnError: if there is no driver there at first, or this user may not
        connect to it.
    :raises OSError: if the port is taken, or ``host`` is not of this machine.
    """
    with ended_by_signals():
        await statistics_of(path)
        watch = DriverWatch(path, interval)
        page = LivePage(watch.report)
        names = {host.lower()}
        async with HttpServer(
            page.answer, port, host=host, only_for_names=names
        ) as server:
            console().print(
                f"watching {path} at {server.url}{page.path}", soft_wrap=True
            )
            await watch.run()
