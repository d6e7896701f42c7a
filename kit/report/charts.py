"""Charts as SVG, which the page's style colours. Pure.

Every chart has a title and a description for screen readers; the page has a table beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape

from kit.report.curves import Band, Curve, Point
from kit.report.record import Run

WIDTH, HEIGHT = 720.0, 280.0
LEFT, RIGHT, TOP, BOTTOM = 62.0, 14.0, 12.0, 42.0
TICKS = 6
SERIES = 8
"""Colours of the page; later runs would repeat them."""


class Scale:
    """Maps values to pixels of a chart."""

    def __init__(self, low: float, high: float, first: float, last: float) -> None:
        self.low, self.high = low, high if high > low else low + 1.0
        self._first, self._factor = first, (last - first) / (self.high - self.low)

    def __call__(self, value: float) -> float:
        """Return the pixel of a value; values outside go to the edge."""
        return self._first + (min(max(value, self.low), self.high) - self.low) * self._factor

    def ticks(self, most: int = TICKS) -> list[float]:
        """Return round values inside."""
        step = _round_step((self.high - self.low) / most)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


def _round_step(least: float) -> float:
    """Return the next number of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * each for each in (1, 2, 5, 10) if power * each >= least * (1 - 1e-9))


def shown(value: float) -> str:
    """Return a number as the label of a tick."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:g} M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:g} k"
    return f"{value:.6g}"


def line_chart(
    title: str,
    description: str,
    curves: Sequence[Curve],
    x_label: str,
    y_label: str,
    number: Callable[[float], str] = shown,
) -> str:
    """Draw curves over one axis; "" if there is nothing to draw."""
    curves = [curve for curve in curves if curve.points]
    if not curves:
        return ""
    xs = [point[0] for curve in curves for point in curve.points]
    ys = [point[1] for curve in curves for point in curve.points]
    low, high = min(ys), max(ys)
    room = (high - low) * 0.05 or abs(high) * 0.1 or 1.0
    x = Scale(min(0.0, *xs), max(xs), LEFT, WIDTH - RIGHT)
    y = Scale(max(0.0, low - room), high + room, HEIGHT - BOTTOM, TOP)
    parts = [*_axes(x, y, x_label, y_label, number)]
    for curve in curves:
        parts.append(_curve(curve, x, y))
    return _svg(title, description, parts, HEIGHT)


def _curve(curve: Curve, x: Scale, y: Scale) -> str:
    style = f"line s{curve.number % SERIES}{' dashed' if curve.dashed else ''}"
    dots = ""
    if len(curve.points) <= 60:
        colour = f"s{curve.number % SERIES}"
        dots = "".join(
            f'<circle class="dot {colour}" cx="{x(px):.1f}" cy="{y(py):.1f}" r="2.6">'
            f"<title>{escape(curve.label)}: {shown(px)}, {py:.4g}</title></circle>"
            for px, py in curve.points
        )
    return f'<polyline class="{style}" points="{_points(curve.points, x, y)}"/>{dots}'


def _points(points: Iterable[Point], x: Scale, y: Scale) -> str:
    return " ".join(f"{x(px):.1f},{y(py):.1f}" for px, py in points)


def _axes(
    x: Scale,
    y: Scale,
    x_label: str,
    y_label: str,
    number: Callable[[float], str],
    height: float = HEIGHT,
) -> Iterator[str]:
    base, right = height - BOTTOM, WIDTH - RIGHT
    for value in y.ticks() if y_label else ():
        at = y(value)
        yield f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>'
        yield _text("tick end", LEFT - 8, at + 4, number(value))
    for value in x.ticks(8):
        yield _text("tick middle", x(value), base + 18, shown(value))
    yield f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{base}" y2="{base}"/>'
    yield _text("label middle", (LEFT + WIDTH) / 2, height - 6, x_label)
    middle = (TOP + base) / 2
    yield (
        f'<text class="label middle" transform="translate(14 {middle}) rotate(-90)">'
        f"{escape(y_label)}</text>"
    )


def _text(style: str, x: float, y: float, text: str) -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _svg(title: str, description: str, parts: Iterable[str], height: float) -> str:
    return (
        f'<svg role="img" viewBox="0 0 {WIDTH:g} {height:g}" '
        f'aria-label="{escape(f"{title}. {description}")}">{"".join(parts)}</svg>'
    )


BAND = 150.0
"""The height of the chart of a rank."""


def band_chart(title: str, band: Band, limit: float) -> str:
    """Draw the step time of a rank in ms: a band from least to most, the median, its own work."""
    steps = [point[0] for point in band.points]
    x = Scale(min(0.0, *steps), max(steps), LEFT, WIDTH - RIGHT)
    y = Scale(0.0, limit * 1000, BAND - BOTTOM, TOP)
    low = [(point[0], point[1] * 1000) for point in band.points]
    median = [(point[0], point[2] * 1000) for point in band.points]
    high = [(point[0], point[3] * 1000) for point in band.points]
    work = [(point[0], point[4] * 1000) for point in band.points]
    area = f"{_points(low, x, y)} {_points(reversed(high), x, y)}"
    parts = [
        *_axes(x, y, "step", "ms", shown, BAND),
        f'<polygon class="band" points="{area}"/>',
        f'<polyline class="line s0" points="{_points(median, x, y)}"/>',
        f'<polyline class="line s1 dashed" points="{_points(work, x, y)}"/>',
    ]
    return _svg(
        title, "Band: fastest to slowest step. Line: median. Dashed: own work.", parts, BAND
    )


def limit_of(bands: Sequence[Band]) -> float:
    """Return the largest step time that charts show, in seconds: a few outliers are cut off."""
    highest = sorted(point[3] for band in bands for point in band.points)
    return highest[int(0.98 * (len(highest) - 1))] * 1.1 if highest else 1.0


BAR, GAP = 26.0, 16.0


def division_chart(rows: Sequence[tuple[str, Mapping[str, float]]]) -> str:
    """Draw the division of each run's seconds as a bar; equal seconds have equal lengths."""
    longest = max((sum(spent.values()) for _, spent in rows), default=0.0)
    x = Scale(0.0, longest, 2.0, WIDTH - 2.0)
    parts, top = [], 4.0
    for label, spent in rows:
        parts.append(f'<text class="tick" x="2" y="{top + 12}">{escape(label)}</text>')
        top += 18
        at = 0.0
        for kind, seconds in spent.items():
            width = x(at + seconds) - x(at)
            if width >= 0.3:
                parts.append(
                    f'<rect class="t-{kind}" x="{x(at):.1f}" y="{top}" width="{width:.1f}" '
                    f'height="{BAR}"><title>{kind}: {seconds:.1f} s</title></rect>'
                )
            at += seconds
        top += BAR + GAP
    title = "Where the time went"
    return _svg(title, "The table below has the same figures.", parts, top)


def time_line(run: Run) -> str:
    """Draw a run's attempts, checkpoints and interruptions over its seconds."""
    x = Scale(0.0, run.ended - run.began, LEFT, WIDTH - RIGHT)
    y, height = Scale(0.0, 1.0, 96.0, 8.0), 96.0 + BOTTOM
    parts = [*_axes(x, y, "seconds since the start", "", lambda _: "", height)]
    for number, attempt in enumerate(run.attempts):
        start, end = x(attempt.time - run.began), x(attempt.last - run.began)
        words = f"{attempt.world_size} ranks on {', '.join(attempt.hosts)}"
        if attempt.world_size == 1:
            words = f"1 rank on {attempt.hosts[0]}"
        parts.append(
            f'<rect class="attempt a{number % 2}" x="{start:.1f}" y="26" '
            f'width="{max(end - start, 1.5):.1f}" height="30"><title>from step {attempt.step:,}: '
            f"{escape(words)}</title></rect>"
        )
        if end - start > 7 * len(words):
            parts.append(f'<text class="inside" x="{start + 6:.1f}" y="45">{escape(words)}</text>')
        elif end - start > 24:
            parts.append(
                f'<text class="inside" x="{start + 6:.1f}" y="45">{attempt.world_size}</text>'
            )
        if number:
            before = run.attempts[number - 1].world_size
            same = before == attempt.world_size
            label = "resumed" if same else f"{before} → {attempt.world_size} ranks"
            reason = run.attempts[number - 1].reason or "no reason was recorded"
            line = f'x1="{start:.1f}" x2="{start:.1f}" y1="24" y2="70"'
            title = f"<title>interrupted: {escape(reason)}</title>"
            parts += [
                f'<line class="restart" {line}>{title}</line>',
                _text("tick middle", start, 18, label),
            ]
    for event in run.events:
        if event.kind == "saved":
            at = x(event.time - run.began)
            parts.append(
                f'<path class="saved" d="M{at:.1f} 64l5 10h-10z"><title>checkpoint at step '
                f"{event.step:,}</title></path>"
            )
    title = f"Time line of {run.label}"
    return _svg(title, "The table below has the same events.", parts, height)
