"""A stand-in for wandb's server, on this machine: it stores what it receives, and can be as broken as servers are."""

import base64
import gzip
import hashlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

KEY = "0123456789abcdef0123456789abcdef01234567"  # of the form that wandb asks for
STREAM = re.compile(r"/files/[^/]+/(?P<project>[^/]+)/(?P<run>[^/]+)/file_stream")


class Server(ThreadingHTTPServer):
    """Runs by id: name, tags, config, history lines by number, summary, files, exit code; and artifacts by name.

    `trouble` is None, hang (connections are accepted and never answered), error (500), garbage, or slow (0.3 s each).
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.trouble: str | None = None
        self.runs: dict[str, dict[str, Any]] = {}
        self.artifacts: dict[str, dict[str, Any]] = {}
        self.asked: list[str] = []
        self.keys: set[str] = set()  # that came in the Authorization header
        self.unknown: list[str] = []
        self.bodies: list[bytes] = []
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def run(self, name: str) -> dict[str, Any]:
        empty = {"displayName": None, "tags": [], "config": {}, "history": {}, "events": {}, "summary": {}, "files": {}}
        return self.runs.setdefault(name, {**empty, "inserted": 0, "exit": None, "lines": []})

    def received(self) -> list[bytes]:
        """Return all that was ever sent here, unpacked."""
        return [gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body for body in self.bodies]

    def die(self) -> None:
        """Close the door: from now on connections are refused, and those that are open are cut."""
        self.trouble = "dead"
        self.shutdown()
        self.server_close()

    def handle_error(self, *_: Any) -> None:
        """A client that went away is not worth a message."""


class Handler(BaseHTTPRequestHandler):
    """Speaks as much of wandb's protocol as its client needs."""

    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_: Any) -> None:
        """Nothing on stderr."""

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _respond(self, body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _any(self) -> None:
        body, server = self._body(), self.server
        server.bodies.append(body)
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        kind, _, word = self.headers.get("Authorization", "").partition(" ")
        if kind == "Basic":
            server.keys.add(base64.b64decode(word).decode().partition(":")[2])
        if server.trouble == "dead":
            self.close_connection = True
            return self.connection.shutdown(socket.SHUT_RDWR)
        if server.trouble == "hang":
            time.sleep(600)
        if server.trouble == "slow":
            time.sleep(0.3)
        if server.trouble == "error":
            return self._respond(b'{"error": "internal"}', 500)
        if server.trouble == "garbage":
            return self._respond(b"\x00\xff<html>not what you asked for")
        if self.path.startswith("/graphql"):
            return self._respond(json.dumps({"data": graphql(server, json.loads(body))}).encode())
        if match := STREAM.fullmatch(self.path):
            return self._respond(json.dumps(stream(server.run(match["run"]), json.loads(body))).encode())
        return self._file(body)

    do_POST = do_GET = do_PUT = _any

    def _file(self, body: bytes) -> None:
        """Take or give an uploaded file: /store/RUN/NAME or /artifact/DIGEST."""
        kind, _, rest = self.path.split("?")[0].lstrip("/").partition("/")
        if self.command == "PUT" and kind == "store":
            name, _, file = rest.partition("/")
            self.server.run(name)["files"][file] = body
        elif self.command == "PUT" and kind == "artifact":
            name, _, file = rest.partition("/")
            self.server.artifacts[name]["files"][file] = body
        else:
            self.server.unknown.append(f"{self.command} {self.path}")
            return self._respond(b"{}", 404)
        return self._respond(b"", headers={"ETag": hashlib.md5(body).hexdigest()})


def stream(run: dict[str, Any], message: dict[str, Any]) -> dict[str, Any]:
    """Take the lines of a run's files, each at its number: sent twice, it is one line."""
    for name, chunk in (message.get("files") or {}).items():
        for number, line in enumerate(chunk["content"], chunk["offset"]):
            if name == "wandb-history.jsonl":
                run["history"][number] = json.loads(line)
            elif name == "wandb-summary.json":
                run["summary"] = json.loads(line)
            elif name == "wandb-events.jsonl":
                run["events"][number] = line
    if message.get("complete"):
        run["exit"] = message.get("exitcode")
    return {"limits": {}}


def graphql(server: Server, asked: dict[str, Any]) -> dict[str, Any]:
    """Answer one query or mutation, by its name."""
    query, values = asked["query"], asked.get("variables") or {}
    match = re.search(r"(query|mutation)\s+(\w+)", query)
    name = match[2] if match else query[:40]
    server.asked.append(name)
    if name in ANSWERS:
        return ANSWERS[name](server, values)
    server.unknown.append(name)
    return {}


def viewer(_server: Server, _values: dict[str, Any]) -> dict[str, Any]:
    person = {"id": "1", "entity": "lab", "username": "ana", "email": "", "flags": "{}", "teams": {"edges": []}}
    return {"viewer": person, "serverInfo": {"features": [], "cliVersionInfo": {}, "latestLocalVersionInfo": None}}


def bucket(server: Server, values: dict[str, Any]) -> dict[str, Any]:
    new = values.get("name") not in server.runs
    run = server.run(values.get("name") or values["id"])
    for theirs, ours in (("displayName", "displayName"), ("tags", "tags")):
        if values.get(theirs):
            run[ours] = values[theirs]
    if values.get("config"):
        run["config"] = json.loads(values["config"])
    run["said"] = {**run.get("said", {}), **{key: value for key, value in values.items() if value}}
    run["inserted"] += new
    project = {"id": "2", "name": values.get("project"), "entity": {"id": "1", "name": "lab"}}
    about = {"id": values.get("name"), "name": values.get("name"), "displayName": run["displayName"]}
    about |= {"description": "", "config": "{}", "sweepName": None, "project": project}
    return {"upsertBucket": {"bucket": about | {"historyLineCount": len(run["history"])}, "inserted": new}}


def resumed(server: Server, values: dict[str, Any]) -> dict[str, Any]:
    run, match = server.runs.get(values["name"]), None
    if run is not None:
        last = [json.dumps(run["history"][max(run["history"])])] if run["history"] else []
        lines = {"historyLineCount": len(run["history"]), "eventsLineCount": len(run["events"]), "logLineCount": 0}
        match = {"id": values["name"], "name": values["name"], "displayName": run["displayName"], "notes": None}
        match |= lines | {"historyTail": json.dumps(last), "eventsTail": "[]", "wandbConfig": '{"t": 1}'}
        match |= {"summaryMetrics": json.dumps(run["summary"]), "config": json.dumps(run["config"])}
        match |= {"tags": run["tags"]}
    return {"model": {"id": "2", "name": "lab", "entity": {"id": "1", "name": "lab"}, "bucket": match}}


def run_files(server: Server, values: dict[str, Any]) -> dict[str, Any]:
    files = [{"name": n, "uploadUrl": f"{server.url}/store/{values['run']}/{n}"} for n in values["files"]]
    return {"createRunFiles": {"runID": values["run"], "uploadHeaders": [], "files": files}}


def artifact(server: Server, values: dict[str, Any]) -> dict[str, Any]:
    fields = values["input"]
    name = (
        fields["artifactCollectionName"] if "artifactCollectionName" in fields else fields["artifactCollectionNames"][0]
    )
    server.artifacts[name] = {"said": fields, "files": {}, "committed": False}
    sequence = {"id": name, "latestArtifact": None}
    artifact = {"id": name, "state": "PENDING", "digest": fields["digest"], "artifactSequence": sequence}
    artifact |= {"artifactSequence": sequence, "artifactManifest": None, "versionIndex": 0}
    return {"createArtifact": {"artifact": artifact}}


def manifest(server: Server, values: dict[str, Any]) -> dict[str, Any]:
    name = values.get("artifactID") or values["artifactManifestID"]
    file = {"id": name, "uploadHeaders": [], "uploadUrl": f"{server.url}/artifact/{name}/{MANIFEST}"}
    return {key: {"artifactManifest": {"id": name, "file": file}} for key in ("create" + KIND, "update" + KIND)}


KIND, MANIFEST = "ArtifactManifest", "wandb_manifest.json"


def artifact_files(server: Server, values: dict[str, Any]) -> dict[str, Any]:
    edges = []
    for entry in (values.get("input") or values)["artifactFiles"]:  # older clients have them one level up
        place = f"{entry['artifactID']}/{entry['name']}"
        node = {"storagePath": place, "uploadUrl": f"{server.url}/artifact/{place}", "uploadHeaders": []}
        edges.append({"node": node | {"uploadMultipartUrls": None, "artifact": {"id": entry["artifactID"]}}})
    return {"createArtifactFiles": {"files": {"edges": edges}}}


def commit(server: Server, values: dict[str, Any]) -> dict[str, Any]:
    artifact = server.artifacts[values["artifactID"]]
    artifact["committed"] = True
    return {"commitArtifact": {"artifact": {"id": values["artifactID"], "digest": artifact["said"]["digest"]}}}


ANSWERS = {
    "Viewer": viewer,
    "ServerInfo": viewer,
    "ServerFeaturesQuery": viewer,
    "UpsertBucket": bucket,
    "RunResumeStatus": resumed,
    "CreateRunFiles": run_files,
    "CreateArtifact": artifact,
    "CreateArtifactManifest": manifest,
    "UpdateArtifactManifest": manifest,
    "CreateArtifactFiles": artifact_files,
    "CommitArtifact": commit,
    "XXHashDigestsEnabled": lambda *_: {"entity": {"xxhashDigestsEnabled": False}},
    "FetchArtifactDigestAlgorithm": lambda *_: {"project": None},
    "MarkRunFilesUploaded": lambda *_: {"markRunFilesUploaded": {"success": True}},
    "ArtifactType": lambda *_: {"project": {"artifact": None}},  # no such artifact yet
    "InputFields": lambda *_: {"TypeInfo": {"inputFields": []}},  # asked by older clients
    "RunState": lambda *_: {"project": {"run": {"id": "1", "state": "running"}}},
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Yield a server that the tracker of a test will talk to, with a key that it will not refuse."""
    artifact = Server()
    monkeypatch.setenv("WANDB_BASE_URL", artifact.url)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    yield artifact
    artifact.die()
