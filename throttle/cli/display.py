"""What `throttle fetch` shows: a bar and the hosts at work while it runs, and a table at the end.

Both go to standard error. What moves is shown on a terminal only; in a pipe there is the table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from throttle.cli.plan import Plan
from throttle.cli.tally import Tally
from throttle.cli.terminal import amount, clean, console, table
from throttle.rate import Rate

__all__ = ["AtWork", "Display"]

#: Hosts in the moving picture, and in the table at the end.
_SHOWN, _LISTED = 8, 40

#: What is known of a host at work: requests that wait there, and the seconds until the next may go.
AtWork = Callable[[str], tuple[int, float]]


class Display:
    """`tallies` – by host, as they change, and `total`. UsageError if rich is not installed."""

    def __init__(self, plan: Plan, tallies: Mapping[str, Tally], total: Tally) -> None:
        self._console = console(stderr=True)
        self._plan = plan
        self._tallies = tallies
        self._total = total
        self._began = time.monotonic()
        self._live: Any = None

    def start(self) -> bool:
        """Begin to move, if this is a terminal that can; whether it is."""
        if not self._console.is_terminal or self._console.is_dumb_terminal:
            return False
        from rich.live import Live

        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()
        return True

    def update(self, at_work: Mapping[str, int], known: AtWork, *, complete: bool) -> None:
        """Show how things stand; `complete` – whether the whole list has been read."""
        if self._live is not None:
            self._live.update(self._moving(at_work, known, complete), refresh=True)

    def stop(self) -> None:
        """Take the moving picture away."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, text: str) -> None:
        """A line."""
        self._console.print(clean(text), soft_wrap=True)

    # ---------------------------------------------------------------- while it runs

    def _moving(self, at_work: Mapping[str, int], known: AtWork, complete: bool) -> Any:
        from rich.columns import Columns
        from rich.console import Group
        from rich.progress_bar import ProgressBar

        total = self._total
        bar = ProgressBar(total.listed or None, total.done, width=32)
        told = [f"{total.done} of {total.listed}{'' if complete else '+'}"]
        if total.failed:
            told.append(f"{total.failed} failed")
        seconds = time.monotonic() - self._began
        told += [f"{total.done / max(seconds, 0.1):.1f}/s", amount(total.size), _clock(seconds)]
        rows = table("host", "done", "rate", "of", "429s", "in line", "next in")
        for host in list(at_work)[:_SHOWN]:
            tally = self._tallies[host]
            waiting, delay = known(host)
            rows.add_row(
                clean(host),
                f"{tally.done} of {tally.listed}",
                self._rate(host),
                self._allowed(host),
                str(tally.refused),
                str(waiting),
                "now" if delay <= 0 else f"{delay:.1f} s",
            )
        hidden = len(at_work) - _SHOWN
        below = [f"and {hidden} hosts more"] if hidden > 0 else []
        return Group(Columns([bar, " · ".join(told)]), rows, *below)

    # ---------------------------------------------------------------- at the end

    def summary(self, earlier: int) -> None:
        """What happened, host by host; `earlier` – fetched by earlier runs."""
        total = self._total
        before = f", {earlier} by earlier runs" if earlier else ""
        failed = f", {total.failed} failed" if total.failed else ""
        seconds = time.monotonic() - self._began
        self.say(
            f"{total.fetched} fetched{before}{failed}, {amount(total.size)} in {seconds:.1f} s"
        )
        if total.forbidden:
            self.say(f"forbidden by robots.txt: {total.forbidden} of those that failed")
        hosts = sorted(self._tallies, key=self._importance)
        rows = table("host", "fetched", "failed", "429s", "waited", "bytes", "rate", "of")
        for host in hosts[:_LISTED]:
            tally = self._tallies[host]
            rows.add_row(
                clean(host),
                str(tally.fetched),
                str(tally.failed),
                str(tally.refused),
                f"{tally.waited:.1f} s",
                amount(tally.size),
                self._rate(host),
                self._allowed(host),
            )
        if hosts:
            self._console.print(rows)
        if len(hosts) > _LISTED:
            self.say(f"and {len(hosts) - _LISTED} hosts more")

    def _importance(self, host: str) -> tuple[int, int, int, str]:
        tally = self._tallies[host]
        return -tally.refused, -tally.failed, -tally.fetched, host

    def _limits(self, host: str) -> tuple[Rate, ...]:
        """What held for a host: what was planned, and what it asked for if that is slower."""
        planned, delay = self._plan.allowed(host), self._tallies[host].delay
        if delay * min(rate.per_second for rate in planned) > 1 + 1e-9:
            return (Rate(1, delay),)
        return planned

    def _rate(self, host: str) -> str:
        slowest = min(self._limits(host), key=lambda rate: rate.per_second)
        return _per(self._tallies[host].rate(slowest.per) * slowest.per, slowest.per)

    def _allowed(self, host: str) -> str:
        return ", ".join(_per(rate.count, rate.per) for rate in self._limits(host))


def _per(count: float, seconds: float) -> str:
    """A rate for people, in the unit in which it was meant."""
    if seconds < 1:
        count, seconds = count / seconds, 1.0
    names: dict[float, str] = {1: "s", 60: "min", 3600: "h", 86400: "day"}
    number = f"{count:.3g}" if count < 100 else f"{count:.0f}"
    return f"{number}/{names.get(seconds) or f'{seconds:.3g}s'}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
