"""The real server over real sockets: what it serves, and everything that it must refuse."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.watch.watched_runs import alert, ask, ask_raw, line, read_events, serving, write_run

TOKEN = "correct horse battery staple"
SECRET = "the secret outside"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path, subprocess.Popen[str]]]:
    """(port, folder of runs, process): two runs and a secret beside them, also linked from inside."""
    root = tmp_path_factory.mktemp("site")
    (root / "secret.txt").write_text(SECRET)
    runs = root / "runs"
    write_run(runs / "a", 5)
    write_run(runs / "b", 2)
    (runs / "b" / "alerts.jsonl").symlink_to(root / "secret.txt")
    (runs / "out").symlink_to(root)
    with serving(str(runs)) as (_, port, process):
        yield port, runs, process


def ids(port: int) -> dict[str, str]:
    return {run["name"]: run["id"] for run in json.loads(ask(port, "GET /runs.json")[1].split("\r\n\r\n", 1)[1])}


def test_the_page_and_all_its_files_come_from_here(site: tuple[int, Path, subprocess.Popen[str]]) -> None:
    port = site[0]
    status, page = ask(port, "GET /")
    assert status == 200
    assert "http://" not in page.split("\r\n\r\n", 1)[1] and "https://" not in page  # works without a network
    for name in ("watch.css", "theme.js", "charts.js", "watch.js", "plotly.js"):
        assert f'"/{name}"' in page
        assert ask(port, f"GET /{name}", size=2000)[0] == 200
    head = page.split("\r\n\r\n", 1)[0].lower()
    assert "script-src 'self';" in head and "unsafe-eval" not in head
    assert "x-content-type-options: nosniff" in head and "referrer-policy: no-referrer" in head
    body = page.split("\r\n\r\n", 1)[1]
    assert "<script>" not in body and "onclick" not in body  # no inline script, which the policy would block


def test_a_browser_that_has_a_file_gets_304(site: tuple[int, Path, subprocess.Popen[str]]) -> None:
    tag = next(row for row in ask(site[0], "HEAD /watch.js")[1].split("\r\n") if row.lower().startswith("etag"))
    assert ask(site[0], "GET /watch.js", headers=f"If-None-Match: {tag.split(': ')[1]}\r\n")[0] == 304


def test_the_stream_tells_runs_history_and_what_is_new(site: tuple[int, Path, subprocess.Popen[str]]) -> None:
    port, runs, _ = site
    run = ids(port)["a"]
    first = read_events(port, run, until="event: news")
    assert "event: hello" in first and "event: runs" in first
    assert '"healthy":[0.0,0.1]' in first  # the band of policy/kl from the registry
    with open(runs / "a" / "metrics.jsonl", "a") as file:
        file.write(line(6) + line(7)[:15])  # the last line is being written
    (runs / "a" / "alerts.jsonl").write_text(alert(6))
    told = read_events(port, run, until="planted evidence")
    # In one piece, or row 6 as news where the reader of the first connection was still there: every row once, in order.
    pieces = re.findall(r'"update":\[([\d,]*)\]', told)
    assert [int(n) for piece in pieces for n in piece.split(",") if n] == [1, 2, 3, 4, 5, 6] and "do this" in told


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "/%2e%2e%2fsecret.txt",
        "/..%5csecret.txt",
        "//etc/passwd",
        "/static/../../secret.txt",
        "/watch.js/../../secret.txt",
        "/%00",
        "/watch.js%00.txt",
        "/etc/passwd",
        "/runs/out/secret.txt",
        "/config.yaml",
        "/a/config.yaml",
        "/watch.html",
        "http://127.0.0.1/secret.txt",
    ],
)
def test_no_path_leads_to_a_file(site: tuple[int, Path, subprocess.Popen[str]], path: str) -> None:
    status, text = ask(site[0], f"GET {path}")
    assert status in (400, 404)
    assert SECRET not in text and "root:" not in text


@pytest.mark.parametrize(
    "run", ["../a", "%2e%2e%2f", "/etc", "a", "..", "%00", "out", "a%00", "....//", "x" * 3000, "a,b,c,d,e,f,g,h,i"]
)
def test_a_run_is_looked_up_never_joined_to_a_path(site: tuple[int, Path, subprocess.Popen[str]], run: str) -> None:
    status, text = ask(site[0], f"GET /events?runs={run}")
    assert status == 404
    assert SECRET not in text


def test_a_link_inside_a_run_shows_nothing_of_its_target(site: tuple[int, Path, subprocess.Popen[str]]) -> None:
    told = read_events(site[0], ids(site[0])["b"], until="event: news")
    assert '"alerts":[]' in told and SECRET not in told
    assert "out" not in ids(site[0])


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "FOO"])
@pytest.mark.parametrize("path", ["/", "/events", "/runs.json", "/nothing"])
def test_there_is_nothing_to_write_to(site: tuple[int, Path, subprocess.Popen[str]], method: str, path: str) -> None:
    status, text = ask(site[0], f"{method} {path}", headers="Content-Length: 0\r\n")
    assert status == 405
    assert "allow: get, head" in text.lower()


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example:{port}", "127.0.0.1:1", "[::2]:{port}", "x:y"],
)
def test_a_foreign_host_name_is_refused(site: tuple[int, Path, subprocess.Popen[str]], host: str) -> None:
    """DNS rebinding: a name of somebody else's that resolves to this machine."""
    assert ask(site[0], "GET /runs.json", host=host.format(port=site[0]))[0] == 421


def test_own_host_names_are_served_and_two_or_no_host_headers_are_not(
    site: tuple[int, Path, subprocess.Popen[str]],
) -> None:
    port = site[0]
    for host in (f"localhost:{port}", f"LOCALHOST:{port}", f"[::1]:{port}", f"127.0.0.1:{port}"):
        assert ask(port, "GET /runs.json", host=host)[0] == 200
    assert ask_raw(port, b"GET /runs.json HTTP/1.1\r\nConnection: close\r\n\r\n")[0] in (400, 421)
    assert ask(port, "GET /runs.json", headers="Host: evil.example\r\n")[0] in (400, 421)
    assert ask(port, "GET /runs.json", headers="Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: cors\r\n")[0] == 403


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\xff\r\n\r\n",
        b"GET / HTTP/9.9\r\nConnection: close\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
    ],
)
def test_nonsense_is_refused_and_the_server_goes_on(site: tuple[int, Path, subprocess.Popen[str]], data: bytes) -> None:
    assert ask_raw(site[0], data)[0] in (400, 404, 421, 431, 505)
    assert ask(site[0], "GET /runs.json")[0] == 200


def test_many_query_fields_are_no_crash(site: tuple[int, Path, subprocess.Popen[str]]) -> None:
    assert ask(site[0], "GET /?" + "&".join(f"a{k}=1" for k in range(1000)))[0] == 200


def test_the_token(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a")
    with serving(str(tmp_path / "runs"), "--token", TOKEN) as (address, port, _):
        assert TOKEN.replace(" ", "%20") in address
        for path in (
            "/",
            "/runs.json",
            "/events",
            "/watch.js",
            "/nothing",
            "/?token=wrong",
            "/?token=",
            "/runs.json?token=x",
        ):
            status, text = ask(port, f"GET {path}")
            assert (status, TOKEN in text) == (401, False)
        assert ask(port, "GET /runs.json", headers="Authorization: Bearer wrong\r\n")[0] == 401
        assert ask(port, "GET /runs.json", headers="Cookie: tailwise_watch=\xe9\r\n")[0] == 401
        assert ask(port, "GET /runs.json", headers=f"Authorization: Bearer {TOKEN}\r\n")[0] == 200
        # Once in the address, then in a cookie that is not the token and that scripts cannot read.
        status, text = ask(port, f"GET {address.split(str(port))[1]}")
        assert status == 303
        head = {row.split(": ")[0].lower(): row.split(": ", 1)[1] for row in text.split("\r\n")[1:] if ": " in row}
        assert head["location"] == "/"
        assert "httponly" in head["set-cookie"].lower() and "samesite=strict" in head["set-cookie"].lower()
        assert TOKEN not in head["set-cookie"]
        cookie = head["set-cookie"].split(";")[0]
        assert ask(port, "GET /runs.json", headers=f"Cookie: {cookie}\r\n")[0] == 200
        assert ask(port, "GET /runs.json", headers=f"Cookie: {cookie}x\r\n")[0] == 401


async def _listen(port: int, count: int, run: str, *, hold: float) -> tuple[int, int]:
    """Open `count` listeners at once, of 20 clients; (served, refused). Some hang up at once, some never read."""

    async def one(index: int) -> int:
        source = (f"127.0.0.{1 + index % 20}", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=source)
        try:
            writer.write(f"GET /events?runs={run} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            await writer.drain()
            if index % 10 == 3:
                return 0  # hangs up without a word
            status = int((await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 120)).split(b" ", 2)[1])
            if status == 200 and index % 10 != 7:  # the others never read
                await asyncio.wait_for(reader.readuntil(b"event: news"), 120)
            await asyncio.sleep(hold)
            return status
        except (ConnectionError, asyncio.IncompleteReadError):
            return 503  # refused at the door, and closed before its answer was read
        finally:
            writer.close()

    answers = await asyncio.gather(*(one(index) for index in range(count)))
    assert set(answers) <= {0, 200, 503}
    return answers.count(200), answers.count(503)


def test_fifty_listeners_are_served_by_one_reader(site: tuple[int, Path, subprocess.Popen[str]]) -> None:
    port, _, process = site
    served, refused = asyncio.run(_listen(port, 50, ids(port)["a"], hold=0.2))
    assert (served, refused) == (45, 0)
    assert process.poll() is None
    assert ask(port, "GET /runs.json")[0] == 200


@pytest.mark.slow
def test_a_thousand_listeners_are_served_or_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a", 200)
    with serving(str(tmp_path / "runs")) as (_, port, process):
        run = ids(port)["a"]
        served, refused = asyncio.run(_listen(port, 1000, run, hold=1.0))
        assert served >= 200
        assert refused >= 100
        assert served + refused >= 880
        assert process.poll() is None
        deadline = time.monotonic() + 30
        while ask(port, f"HEAD /events?runs={run}")[0] != 200:  # their places are free again
            assert time.monotonic() < deadline
            time.sleep(0.5)
        assert "event: news" in read_events(port, run, until="event: news")
