"""From samples to medians, ranges and ratios, and how they are printed. Knows no engine.

A ratio is taken within a round, where both sides ran next to each other; the median of the rounds'
ratios is shown. So a machine that drifts between rounds moves speeds, but hardly ratios.
"""

import csv
import io
from dataclasses import dataclass
from statistics import median

PHASES = ("decode", "prefill")


@dataclass(frozen=True)
class Sample:
    """What one engine did with one batch in one round."""

    round: int
    engine: str
    batch: int
    prefill: float
    decode: float
    version: str = ""


@dataclass(frozen=True)
class Spread:
    """The median of some figures, and their range."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(figures: list[float]) -> "Spread | None":
        if not figures:
            return None
        return Spread(median(figures), min(figures), max(figures))


class Results:
    """All samples of a run. The first engine is the one the others are compared with."""

    def __init__(self, engines: list[str], batches: list[int]) -> None:
        self.engines = engines
        self.batches = batches
        self.samples: list[Sample] = []

    def present(self) -> list[str]:
        """The engines that measured anything, in their order."""
        seen = {sample.engine for sample in self.samples}
        return [engine for engine in self.engines if engine in seen]

    def by_round(self, engine: str, batch: int, phase: str) -> dict[int, float]:
        mine = (s for s in self.samples if s.engine == engine and s.batch == batch)
        return {sample.round: getattr(sample, phase) for sample in mine}

    def speed(self, engine: str, batch: int, phase: str) -> Spread | None:
        return Spread.of(list(self.by_round(engine, batch, phase).values()))

    def ratio(self, engine: str, peers: list[str], batch: int, phase: str) -> Spread | None:
        """`engine` against the best of `peers` in each round in which both ran."""
        mine = self.by_round(engine, batch, phase)
        theirs = [self.by_round(peer, batch, phase) for peer in peers]
        ratios = []
        for number, figure in mine.items():
            rivals = [figures[number] for figures in theirs if number in figures]
            if rivals:
                ratios.append(figure / max(rivals))
        return Spread.of(ratios)

    def version(self, engine: str) -> str:
        return next((s.version for s in self.samples if s.engine == engine and s.version), "")

    def rows(self) -> list[dict]:
        """One row for each engine and batch, for JSON and CSV."""
        present = self.present()
        return [self.row(engine, batch) for batch in self.batches for engine in present
                if self.speed(engine, batch, "decode")]

    def row(self, engine: str, batch: int) -> dict:
        row = {"engine": engine, "version": self.version(engine), "batch": batch}
        base = self.present()[0]
        for phase in PHASES:
            speed = self.speed(engine, batch, phase)
            ratio = self.ratio(base, [engine], batch, phase)
            row[f"{phase}_tokens_per_s"] = round(speed.median, 1)
            row[f"{phase}_min"] = round(speed.low, 1)
            row[f"{phase}_max"] = round(speed.high, 1)
            row[f"{phase}_ratio"] = round(ratio.median, 3) if ratio else None
        row["rounds"] = len(self.by_round(engine, batch, "decode"))
        return row


def text(results: Results) -> str:
    """The table: speeds of every engine, then the first engine against each of the others."""
    present = results.present()
    if not present:
        return ""
    own = [engine for engine in present if is_variant(engine, present[0])]
    peers = [engine for engine in present if engine not in own]
    rivals = [[peer] for peer in peers] + ([peers] if len(peers) > 1 else [])
    against = [(engine, some) for engine in own for some in rivals]
    headings = ["", "batch", *present, *(heading(*pair) for pair in against)]
    lines = []
    for phase in PHASES:
        for batch in results.batches:
            speeds = [shown(results.speed(engine, batch, phase), "{:,.0f}") for engine in present]
            ratios = [shown(results.ratio(*pair, batch, phase), "{:.2f}x") for pair in against]
            lines.append([phase, str(batch), *speeds, *ratios])
    return aligned([headings, *lines])


def is_variant(engine: str, base: str) -> bool:
    """Whether it is the same engine, in another way."""
    return engine == base or engine.startswith(f"{base}-")


def heading(base: str, rivals: list[str]) -> str:
    return f"{base} / {rivals[0]}" if len(rivals) == 1 else f"{base} / the best"


def shown(spread: Spread | None, form: str) -> str:
    """Like `540 (523-564)`; one measurement has no range."""
    if spread is None:
        return "-"
    if spread.low == spread.high:
        return form.format(spread.median)
    low, high = form.format(spread.low), form.format(spread.high)
    return f"{form.format(spread.median)} ({low.removesuffix('x')}-{high.removesuffix('x')})"


def aligned(rows: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ("  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows)
    return "\n".join(lines)


def csv_text(results: Results, model: str, comments: list[str]) -> str:
    """A record: how it came about in comments, then one line for each engine and batch."""
    rows = results.rows()
    out = io.StringIO()
    for comment in comments:
        out.write(f"# {comment}\n")
    if rows:
        writer = csv.DictWriter(out, ["model", *rows[0]], lineterminator="\n")
        writer.writeheader()
        writer.writerows({"model": model, **row} for row in rows)
    return out.getvalue()
