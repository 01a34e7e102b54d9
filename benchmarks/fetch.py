"""`throttle fetch` of 200 URLs from a server that allows 50 in any second, exactly: five runs.

With robots.txt there are 201 requests, which need a window more; without it (`--no-robots`) 200.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from subprocess import run

from benchmarks.harness import table
from throttle.testing import RateLimitedServer

MANY, RATE = 200, 50


def main() -> None:
    rows = []
    for number in range(1, 6):
        with RateLimitedServer(f"{RATE}/s") as server, tempfile.TemporaryDirectory() as folder:
            urls = Path(folder, "urls.txt")
            urls.write_text("\n".join(server.url_for(f"/{n}") for n in range(MANY)))
            command = [sys.executable, "-m", "throttle", "fetch", str(urls)]
            command += ["--rate", f"{RATE}/s", "--out", f"{folder}/out", *sys.argv[1:]]
            run(command, check=True, capture_output=True)
            seen = [arrival.instant for arrival in server.requests]
            wall = seen[-1] - seen[0]
            ideal = (len(seen) - 1) // RATE
            rows.append((number, len(seen), server.refused, f"{wall:.3f} s", wall / ideal))
    table("fetch", ("run", "requests", "429s", "first to last arrival", "of the ideal"), rows)


if __name__ == "__main__":
    began = time.monotonic()
    main()
    print(f"\n{time.monotonic() - began:.1f} s in all")
