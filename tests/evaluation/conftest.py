import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from .served import MODELS


@pytest.fixture
def server():
    """`url`, `requests` (bodies so far) and `answers`: functions of a body, each for one request, that give status and body."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer(200, MODELS)

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            httpd.requests.append(body)
            self.answer(*httpd.answers.pop(0)(body))

        def answer(self, status, content):
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        httpd.requests, httpd.answers = [], []
        httpd.url = f"http://127.0.0.1:{httpd.server_port}"
        thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
        thread.start()
        yield httpd
        httpd.shutdown()
        thread.join()
