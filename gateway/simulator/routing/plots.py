"""The race as pictures: regret of every router with its interval, a panel a cell. Plain SVG.

Written here rather than by a plotting library: one kind of chart does not pay for a dependency
that every user of the gateway would have to install.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from jinja2 import Environment

from gateway.simulator.routing.bench import CellResult
from gateway.simulator.routing.ours import PREFERENCES

REGRET_MAX = 30.0  # more is drawn at the edge, with an arrow
TICKS = (1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
LEFT, WIDTH, ROW, TOP = 230.0, 560.0, 20.0, 52.0
_TEMPLATE = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 840 {{ height }}" width="840" \
height="{{ height }}" font-family="system-ui, sans-serif" font-size="12">
<rect width="100%" height="100%" fill="#ffffff"/>
<text x="16" y="22" font-size="15" font-weight="600" fill="#1b1f24">{{ title }}</text>
<text x="16" y="40" fill="#57606a">{{ figure }}, times that of the clairvoyant; bars: 95 % \
interval over {{ num_seeds }} seeds</text>
{%- for x, label in ticks %}
<line x1="{{ x }}" y1="{{ top }}" x2="{{ x }}" y2="{{ bottom }}" stroke="#e3e6ea"/>
<text x="{{ x }}" y="{{ bottom + 16 }}" text-anchor="middle" fill="#57606a">{{ label }}</text>
{%- endfor %}
{%- for row in rows %}
<text x="{{ left - 12 }}" y="{{ row.y + 4 }}" text-anchor="end" fill="{{ row.ink }}"\
{% if row.ours %} font-weight="600"{% endif %}>{{ row.name }}</text>
<line x1="{{ row.low }}" y1="{{ row.y }}" x2="{{ row.high }}" y2="{{ row.y }}" \
stroke="{{ row.ink }}" stroke-width="2"/>
<circle cx="{{ row.x }}" cy="{{ row.y }}" r="4.5" fill="{{ row.ink }}"/>
<text x="{{ row.label_x }}" y="{{ row.y + 4 }}" fill="{{ row.ink }}">{{ row.label }}</text>
{%- endfor %}
</svg>
"""
_OURS, _THEIRS = "#0a5fd0", "#6e7781"


def regret_plot(result: CellResult, figure: str = "p95_s") -> str:
    """One cell's SVG: routers from best to worst on a logarithmic axis."""
    found = sorted(
        ((name, *bounds[figure]) for name, bounds in result.regrets.items()),
        key=lambda each: each[1],
    )
    rows = [_row(idx, *each) for idx, each in enumerate(found)]
    bottom = TOP + ROW * len(rows) + 8.0
    template = Environment(autoescape=True).from_string(_TEMPLATE)
    return template.render(
        title=result.cell.name,
        figure={"p95_s": "p95 of completion", "p50_s": "median completion"}.get(figure, figure),
        num_seeds=len(result.seeds),
        ticks=[(round(_x(tick), 1), f"{tick:g}x") for tick in TICKS],
        rows=rows,
        left=LEFT,
        top=TOP,
        bottom=bottom,
        height=round(bottom + 28.0),
    )


def _row(idx: int, name: str, value: float, low: float, high: float) -> dict[str, object]:
    is_ours = name in PREFERENCES
    right = max(_x(value), _x(high))
    return {
        "name": name,
        "ours": is_ours,
        "ink": _OURS if is_ours else _THEIRS,
        "y": TOP + ROW * (idx + 0.5) + 4.0,
        "x": round(_x(value), 1),
        "low": round(_x(low), 1),
        "high": round(right, 1),
        "label": f"{value:.2f}x" + (" →" if value > REGRET_MAX else ""),
        "label_x": round(right + 9.0, 1),
    }


def _x(regret: float) -> float:
    within = min(REGRET_MAX, max(1.0, regret))
    return LEFT + WIDTH * 0.9 * log(within) / log(REGRET_MAX)


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
