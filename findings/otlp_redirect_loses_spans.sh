#!/bin/sh
# Guess: a collector that has moved answers a POST of spans with a redirection, and OpenTelemetry's exporter then posts
#   the spans to the new address or reports a failure. So spans that were reported as exported have arrived.
# What happens: the exporter follows no redirection, and takes any answer from 200 to 399 for success
#   (opentelemetry/exporter/otlp/common/http.py: 200 <= status_code < 400). The new address never sees the spans,
#   export() returns SUCCESS, and nothing is logged. The same for 302 and 307.
# Instead: give the collector's final address, and count what arrives there.
# Version: opentelemetry-exporter-otlp-proto-http 1.45.2 with CPython 3.11.7. Source: that file, and the output below.
# Needs pip. Fails if the behaviour changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check \
    opentelemetry-sdk==1.45.2 opentelemetry-exporter-otlp-proto-http==1.45.2
cat >"$folder/look.py" <<'LOOK'
import importlib.metadata, logging, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

package = "opentelemetry-exporter-otlp-proto-http"
print("python", sys.version.split()[0], package, importlib.metadata.version(package))
logging.basicConfig()
code, asked = 0, []


class Answering(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        asked.append((self.command, self.path, len(body) > 0))
        self.send_response(code if self.path == "/v1/traces" else 200)
        self.send_header("Location", "/moved/v1/traces")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST

    def log_message(self, *said):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
Thread(target=server.serve_forever, daemon=True).start()
memory, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(memory))
provider.get_tracer("look").start_span("work").end()
exporter = OTLPSpanExporter(f"http://127.0.0.1:{server.server_port}/v1/traces")
found = {}
for code in (302, 307):
    asked.clear()
    result = exporter.export(memory.get_finished_spans())
    arrived = any(path == "/moved/v1/traces" and has_body for _, path, has_body in asked)
    found[code] = (result is SpanExportResult.SUCCESS, arrived)
    print(f"{code}: {result.name}; asked {[one[:2] for one in asked]}; spans arrived: {arrived}")
sys.exit(0 if found == {302: (True, False), 307: (True, False)} else "the behaviour has changed")
LOOK
cd "$folder"
venv/bin/python look.py
