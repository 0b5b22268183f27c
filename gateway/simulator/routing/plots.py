"""The race as pictures: regret of every router with its interval, a panel a cell. Plain SVG.

Written here rather than by a plotting library: one kind of chart does not pay for a dependency
that every user of the gateway would have to install. Ours, rivals and clairvoyants differ in shape
and weight, not in colour alone (blue against grey is safe for every kind of colour blindness), and
the picture follows the reader's light or dark setting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

from jinja2 import Environment

from gateway.simulator.routing.baselines.registry import BASELINES
from gateway.simulator.routing.bench import CellResult, Ratio
from gateway.simulator.routing.ours import PREFERENCES

REGRET_MAX = 30.0  # more is drawn at the edge, with an arrow
REGRET_MIN = 0.5  # greedy is not the best there is: a router may do better
TICKS = (0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0)
TICK_APART = 42.0  # px, so that no label touches the next
LEFT, RIGHT, ROW, TOP = 214.0, 720.0, 21.0, 84.0
LABEL_X = 736.0  # values stand in a column of their own
_FIGURES = {"p95_s": "p95 of completion time", "p50_s": "median completion time"}
_TEMPLATE = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 840 {{ height }}" width="840" \
height="{{ height }}" font-family="system-ui, sans-serif" font-size="12" role="img" \
aria-labelledby="title">
<title id="title">{{ figure }} over the clairvoyant's, {{ title }}</title>
<style>
.page { fill: #ffffff } .ink { fill: #1b1f24 } .quiet { fill: #57606a }
.grid { stroke: #e3e6ea } .one { stroke: #8c959f }
.ours { fill: #0a5fd0; stroke: #0a5fd0 } .theirs { fill: #6e7781; stroke: #6e7781 }
.oracle { fill: #ffffff; stroke: #6e7781 }
@media (prefers-color-scheme: dark) {
.page { fill: #0d1117 } .ink { fill: #e6edf3 } .quiet { fill: #9198a1 }
.grid { stroke: #262c34 } .one { stroke: #656c76 }
.ours { fill: #6cb6ff; stroke: #6cb6ff } .theirs { fill: #8b949e; stroke: #8b949e }
.oracle { fill: #0d1117; stroke: #8b949e }
}
text { stroke: none !important } text.oracle { fill: #6e7781 }
</style>
<rect class="page" width="100%" height="100%"/>
<text x="16" y="24" font-size="15" font-weight="600" class="ink">{{ title }}</text>
<text x="16" y="43" class="quiet">{{ figure }}, times that of the clairvoyant (log scale, less is \
better); {{ bars }}</text>
<circle cx="22" cy="60" r="4.5" class="ours"/><text x="33" y="64" class="quiet">LoopRouter</text>
<rect x="120" y="56" width="8" height="8" class="theirs"/>\
<text x="134" y="64" class="quiet">others' rules</text>
<circle cx="236" cy="60" r="4" class="oracle" stroke-width="1.6"/>\
<text x="247" y="64" class="quiet">knows what cannot be known</text>
{%- for x, label in ticks %}
<line x1="{{ x }}" y1="{{ top }}" x2="{{ x }}" y2="{{ bottom }}" \
class="{{ 'one' if label == '1x' else 'grid' }}"/>
<text x="{{ x }}" y="{{ bottom + 16 }}" text-anchor="middle" class="quiet">{{ label }}</text>
{%- endfor %}
{%- for row in rows %}
<text x="{{ left - 14 }}" y="{{ row.y + 4 }}" text-anchor="end" \
class="{{ 'ours' if row.kind == 'ours' else 'quiet' }}"\
{% if row.kind == 'ours' %} font-weight="600"{% endif %}>{{ row.name }}</text>
{%- if row.low is not none %}
<line x1="{{ row.low }}" y1="{{ row.y }}" x2="{{ row.high }}" y2="{{ row.y }}" \
class="{{ row.kind }}" stroke-width="2"/>
{%- endif %}
{%- if row.is_cut %}
<path d="M{{ right + 4 }} {{ row.y - 5 }} l8 5 l-8 5 z" class="{{ row.kind }}" stroke="none"/>
{%- endif %}
{%- if row.x is none %}
{%- elif row.kind == 'theirs' %}
<rect x="{{ row.x - 4 }}" y="{{ row.y - 4 }}" width="8" height="8" class="theirs"/>
{%- else %}
<circle cx="{{ row.x }}" cy="{{ row.y }}" r="{{ 5 if row.kind == 'ours' else 4 }}" \
class="{{ row.kind }}" stroke-width="1.6"/>
{%- endif %}
<text x="{{ label_x }}" y="{{ row.y + 4 }}" \
class="{{ 'ours' if row.kind == 'ours' else 'quiet' }}">{{ row.label }}</text>
{%- endfor %}
</svg>
"""


@dataclass(frozen=True, slots=True)
class _Axis:
    """A logarithmic axis over regrets, as long as its cell needs."""

    low: float
    high: float

    def x(self, regret: float) -> float:
        within = min(self.high, max(self.low, regret))
        return round(LEFT + (RIGHT - LEFT) * log(within / self.low) / log(self.high / self.low), 1)

    def ticks(self) -> list[tuple[float, str]]:
        """(x, label) of the ticks within; one that would crowd the last is left out, 1x never."""
        inside = [tick for tick in TICKS if self.low <= tick <= self.high]
        kept = [1.0]
        for tick in sorted(inside, key=lambda each: each not in (self.low, self.high)):
            if all(abs(self.x(tick) - self.x(other)) >= TICK_APART for other in kept):
                kept.append(tick)
        return [(self.x(tick), f"{tick:g}x") for tick in sorted(kept)]


def _axis_of(ratios: Sequence[Ratio]) -> _Axis:
    lowest = min(value if low is None else low for value, low, _ in ratios)
    highest = max(value if high is None else high for value, _, high in ratios)
    low = max((t for t in TICKS if t <= max(REGRET_MIN, min(1.0, lowest))), default=REGRET_MIN)
    high = min((t for t in TICKS if t >= max(1.5, highest)), default=REGRET_MAX)
    return _Axis(low, high)


def regret_plot(result: CellResult, figure: str = "p95_s") -> str:
    """One cell's SVG: routers from best to worst on a logarithmic axis."""
    found = sorted(
        ((name, bounds[figure]) for name, bounds in result.regrets.items()),
        key=lambda each: each[1][0],
    )
    axis = _axis_of([ratio for _, ratio in found])
    bottom = TOP + ROW * len(found) + 4.0
    num = len(result.seeds)
    template = Environment(autoescape=True).from_string(_TEMPLATE)
    return template.render(
        title=result.cell.name,
        figure=_FIGURES.get(figure, figure),
        bars=f"bars: 95 % interval over {num} seeds" if num > 1 else "one seed: no interval",
        ticks=axis.ticks(),
        rows=[_row(idx, name, ratio, axis) for idx, (name, ratio) in enumerate(found)],
        left=LEFT,
        right=RIGHT,
        label_x=LABEL_X,
        top=TOP,
        bottom=bottom,
        height=round(bottom + 28.0),
    )


def _row(idx: int, name: str, ratio: Ratio, axis: _Axis) -> dict[str, object]:
    value, low, high = ratio
    is_cut = max(value, high or 0.0) > axis.high
    return {
        "name": name,
        "kind": _kind(name),
        "y": TOP + ROW * (idx + 0.5) + 2.0,
        "x": axis.x(value) if value <= axis.high else None,  # beyond: the arrow alone
        "low": None if low is None else axis.x(low),
        "high": None if high is None else axis.x(high) + (4.0 if is_cut else 0.0),
        "is_cut": is_cut,
        "label": f"{value:.2f}x",
    }


def _kind(name: str) -> str:
    if name in PREFERENCES:
        return "ours"
    return "oracle" if BASELINES[name].is_clairvoyant else "theirs"


def plots(results: Sequence[CellResult]) -> dict[str, str]:
    """File name → SVG, for each cell that has regrets."""
    return {
        f"{result.cell.name.replace(', ', '-').replace(' ', '-')}-{figure[:3]}.svg": regret_plot(
            result, figure
        )
        for result in results
        if result.regrets
        for figure in ("p50_s", "p95_s")
    }
