"""A headless Chromium with one page, which is driven by its debugging protocol, and a server of a folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WITHOUT_NETWORK = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"


class Browser:
    """A page of Chromium. Requests and responses end with a zero byte, in the pipes 3 and 4."""

    def __init__(self, program: str, folder: Path) -> None:
        options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}", WITHOUT_NETWORK]
        command = [program, *options, "--remote-debugging-pipe", "about:blank"]
        redirect = 'exec "$@" 3<&0 4>&1 0<&- 1>&2'
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            ["sh", "-c", redirect, "sh", *command], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, bufsize=0
        )
        assert self._process.stdin and self._process.stdout
        self._requests, self._responses = self._process.stdin, self._process.stdout
        self._buffer, self._number, self._session = b"", 0, ""
        (page,) = (each for each in self.call("Target.getTargets")["targetInfos"] if each["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Call a method of the protocol, and return its result."""
        self._number += 1
        request: dict[str, object] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            request["sessionId"] = self._session
        self._requests.write(json.dumps(request).encode() + b"\0")
        while True:
            while b"\0" not in self._buffer:
                received = self._responses.read(1 << 20)
                assert received, "Chromium has ended"
                self._buffer += received
            line, _, self._buffer = self._buffer.partition(b"\0")
            response = json.loads(line)
            if response.get("id") == self._number:
                assert "error" not in response, response
                return response["result"]

    def evaluate(self, code: str) -> Any:
        """Return the value of an expression of JavaScript, which may be a promise."""
        result = self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def close(self) -> None:
        """End the browser."""
        self._process.kill()
        self._process.wait()
        self._requests.close()
        self._responses.close()


@contextmanager
def serve(folder: Path) -> Generator[tuple[str, list[str]]]:
    """Serve a folder. Yield its address, and the list of the requested paths."""
    paths: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            paths.append(self.path)

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", paths
    finally:
        server.shutdown()
        server.server_close()
