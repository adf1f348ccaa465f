"""Benchmark `tmt serve`: throughput and latency under load, the gain of batching, and the growth of memory.

    python scripts/bench_server.py RUN [--src F] [--clients 1 8 64] [--seconds 10] [--threads N]
    python scripts/bench_server.py RUN --minutes 30 [--clients 64]

Each client sends one sentence after another over its own connection. The first form measures the run with and without
batching, and without a server, one sentence at a time and with a batch of as many sentences as there are clients.

--minutes keeps the load up, and prints requests, errors and the resident memory of the server each minute.

The clients run in this process, on the same cores as the server. Without --src the sentences are those of a test set
of the built-in corpus.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

from common import positive_int, read_resident_bytes, run_script

from transformer_mt.data.sources import load_pairs

WARM_UP_SECONDS = 2.0
COLUMNS = ("system", "batching", "clients", "per second", "p50 ms", "p95 ms", "p99 ms", "errors")

WITHOUT_BATCHING = """
import sys
from transformer_mt.cli.main import main
from transformer_mt.tools.serving import batching

batching.MAX_BATCH_LINES = 1
main(sys.argv[1:])
"""


@dataclass
class Load:
    """Latencies of the successful requests of all clients in seconds, and the number of others."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list[float])
    n_errors: int = 0

    def row(self) -> list[str]:
        """Return the cells of the table."""
        rate = len(self.latencies) / self.seconds
        percentiles = [f"{1000 * percentile(self.latencies, share):.1f}" for share in (0.5, 0.95, 0.99)]
        return [f"{rate:.1f}", *percentiles, str(self.n_errors)]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed; NaN without values."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)] if ordered else float("nan")


@contextmanager
def running_server(model: Path, threads: int | None, *, batching: bool) -> Generator[tuple[int, int]]:
    """Start a server, and yield its process id and port."""
    options = ["--threads", str(threads)] if threads else []
    options += ["--max-requests", "1000"]
    program = ["-m", "transformer_mt"] if batching else ["-c", WITHOUT_BATCHING]
    command = [sys.executable, *program, "serve", str(model), "--port", "0", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = ""
        for line in process.stderr:
            if "serves at" in line:
                break
        else:
            raise SystemExit(f"the server did not start: {line}")
        try:
            yield process.pid, int(line.rpartition(":")[2].partition("/")[0])
        finally:
            process.terminate()


async def send_requests(port: int, sentences: Iterator[str], languages: dict[str, str], end: float, load: Load) -> None:
    """Send one sentence after another until `end`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.monotonic() < end:
        body = json.dumps({"q": next(sentences), **languages}).encode()
        head = f"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        start = time.monotonic()
        writer.write(f"{head}\r\n\r\n".encode() + body)
        try:
            answer = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.partition(b":")[2]))
        except (asyncio.IncompleteReadError, ConnectionError):
            load.n_errors += 1
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            continue
        if answer.startswith(b"HTTP/1.1 200"):
            load.latencies.append(time.monotonic() - start)
        else:
            load.n_errors += 1
    writer.close()


async def measure(port: int, sentences: Sequence[str], clients: int, seconds: float) -> Load:
    """Return the load of several clients. Their sentences start at different places."""
    with urlopen(f"http://127.0.0.1:{port}/languages") as answer:
        language = json.load(answer)[0]
    languages = {"source": language["code"], "target": language["targets"][0]}
    load, start = Load(), time.monotonic()
    stride = max(1, len(sentences) // clients)
    texts = (itertools.cycle([*sentences[i * stride :], *sentences[: i * stride]]) for i in range(clients))
    await asyncio.gather(*(send_requests(port, each, languages, start + seconds, load) for each in texts))
    load.seconds = time.monotonic() - start
    return load


def measure_directly(run: Path, sentences: Sequence[str], batch: int, seconds: float, threads: int | None) -> Load:
    """Return the load of a run without a server, which translates batches of `batch` sentences."""
    from transformer_mt.flows.translation import LoadOptions, load_translator

    translator = load_translator(run, LoadOptions(threads=threads or "auto"))
    texts = itertools.cycle(sentences)
    load = Load()
    start = time.monotonic()
    while (before := time.monotonic()) < start + seconds:
        translator.translate([next(texts) for _ in range(batch)])
        load.latencies += [time.monotonic() - before] * batch
    load.seconds = time.monotonic() - start
    return load


def print_row(cells: Sequence[str]) -> None:
    print("  ".join(f"{cell:>10}" if i > 1 else f"{cell:<12}" for i, cell in enumerate(cells)), flush=True)


def compare(args: argparse.Namespace, sentences: Sequence[str]) -> None:
    """Print throughput and latencies with and without a server."""
    print_row(COLUMNS)
    for batching in (True, False):
        with running_server(args.run, args.threads, batching=batching) as (_, port):
            asyncio.run(measure(port, sentences, max(args.clients), WARM_UP_SECONDS))
            for clients in args.clients:
                load = asyncio.run(measure(port, sentences, clients, args.seconds))
                print_row(["server", "on" if batching else "off", str(clients), *load.row()])
    for batch in args.clients:
        load = measure_directly(args.run, sentences, batch, args.seconds, args.threads)
        print_row(["direct", f"batch {batch}", "", *load.row()])


def keep_loaded(args: argparse.Namespace, sentences: Sequence[str]) -> None:
    """Print requests, errors and memory of each minute."""
    clients = max(args.clients)
    print_row(("minute", "MB", *COLUMNS[2:]))
    with running_server(args.run, args.threads, batching=True) as (process, port):
        sizes: list[float] = []
        for minute in range(1, args.minutes + 1):
            load = asyncio.run(measure(port, sentences, clients, 60))
            sizes.append(read_resident_bytes(process) / 2**20)
            print_row([str(minute), f"{sizes[-1]:.1f}", str(clients), *load.row()])
    half = len(sizes) // 2
    if half:
        growth = statistics.mean(sizes[half:]) - statistics.mean(sizes[:half])
        print(f"growth of the mean memory from the first half to the second: {growth:.1f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("run", type=Path)
    add("--src", type=Path, help="sentences, one per line")
    add("--clients", type=positive_int, nargs="+", default=[1, 8, 64])
    add("--seconds", type=positive_int, default=10)
    add("--threads", type=positive_int)
    add("--minutes", type=positive_int)
    args = parser.parse_args()
    if args.src:
        sentences = [line for line in args.src.read_text(encoding="utf-8").splitlines() if line.strip()]
    else:
        sentences = [src for src, _ in load_pairs("test")]
    (keep_loaded if args.minutes else compare)(args, sentences)


if __name__ == "__main__":
    run_script(main)
