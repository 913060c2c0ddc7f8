"""A W&B server on this machine, which takes what `wandb sync` and a dashboard send and keeps it."""

import gzip
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Server:
    """What came in: queries by name with their variables, and uploaded files by path."""

    address: str
    queries: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    received: list[bytes] = field(default_factory=list)

    def named(self, name: str) -> list[dict[str, Any]]:
        return [variables for query, variables in self.queries if query == name]

    @property
    def environ(self) -> dict[str, str]:
        """Variables with which wandb talks to this server."""
        return {"WANDB_BASE_URL": self.address, "WANDB_API_KEY": "0" * 40}

    def answer(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        upload = {"uploadHeaders": [], "uploadMultipartUrls": None, "storagePath": None}
        manifest = {"id": "m", "name": "manifest", "displayName": "manifest"}
        manifest |= upload | {"uploadUrl": f"{self.address}/{len(self.queries)}/manifest"}
        project = {"id": "p", "name": variables.get("project"), "entity": {"id": "e", "name": "me"}}
        bucket = {"id": "b", "name": variables.get("name"), "displayName": "d", "config": "{}"}
        bucket |= {"project": project, "historyLineCount": 0}
        added = variables.get("input", {}).get("artifactFiles", variables.get("artifactFiles", []))
        nodes = [
            {"id": f["name"], "name": f["name"], "displayName": f["name"], "artifact": {"id": "a"}}
            | upload
            | {"uploadUrl": f"{self.address}/artifact/{f['name']}"}
            for f in added
        ]
        sent = [
            {"name": name, "uploadUrl": f"{self.address}/file/{name}"}
            for name in variables.get("files", [])
        ]
        user = {"id": "u", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}
        artifact = {"id": "a", "state": "PENDING", "artifactSequence": {"id": "s"}}
        return {
            "Viewer": {"viewer": user},
            "GetDefaultEntity": {"viewer": {"id": "u", "entity": "me"}},
            "ServerFeaturesQuery": {"serverInfo": {"features": []}},
            "UpsertBucket": {"upsertBucket": {"bucket": bucket, "inserted": True}},
            "CreateArtifact": {"createArtifact": {"artifact": artifact}},
            "CreateArtifactManifest": {
                "createArtifactManifest": {"artifactManifest": {"id": "m", "file": manifest}}
            },
            "CommitArtifact": {"commitArtifact": {"artifact": {"id": "a", "digest": "x"}}},
            "CreateRunFiles": {
                "createRunFiles": {"runID": "b", "uploadHeaders": [], "files": sent}
            },
            "CreateArtifactFiles": {
                "createArtifactFiles": {"files": {"edges": [{"node": node} for node in nodes]}}
            },
            "UpsertView2": {
                "upsertView": {"view": {"id": "v", "name": variables.get("name")}, "inserted": True}
            },
        }.get(query, {})


@contextmanager
def running() -> Iterator[Server]:
    """A server on a free port, until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            return None

        def do_POST(self) -> None:
            body = self._body()
            answer: dict[str, Any] = {"exitcode": None, "limits": {}}
            if self.path.endswith("/graphql"):
                asked = json.loads(body)
                (name,) = re.findall(r"(?:query|mutation)\s+(\w+)", asked["query"])[:1]
                variables = asked.get("variables") or {}
                server.queries.append((name, variables))
                answer = {"data": server.answer(name, variables)}
            self._reply(answer)

        def do_PUT(self) -> None:
            server.files[self.path] = self._body()
            self._reply({})

        def _body(self) -> bytes:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            server.received.append(f"{self.path} {self.headers}".encode() + body)
            return body

        def _reply(self, answer: dict[str, Any]) -> None:
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        server = Server(f"http://127.0.0.1:{listening.server_port}")
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            listening.shutdown()
            thread.join()
