"""Plots of an audit as SVG text: one bar per attack, and a mark at the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ce.audit.report import LEAKS, NOTHING, Finding

_ROW, _LABEL, _SCALE, _RIGHT, _TOP = 22, 300, 420, 60, 26


def bars(findings: Sequence[Finding]) -> str:
    """How much each attack recovered, from 0 to 1; the vertical mark is the baseline."""
    height = _TOP + _ROW * len(findings) + 8
    width = _LABEL + _SCALE + _RIGHT
    parts = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="recovered against baseline">']
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        x = _LABEL + tick * _SCALE
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{_TOP - 6}" x2="{x:.1f}" y2="{height - 8}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{_TOP - 12}" text-anchor="middle">{tick:g}</text>')
    for row, finding in enumerate(findings):
        parts += _bar(finding, _TOP + row * _ROW)
    return "\n".join([*parts, "</svg>"])


def kind(finding: Finding) -> str:
    """The CSS class that gives a finding its colour."""
    if finding.verdict == LEAKS:
        return "leak"
    return "quiet" if finding.verdict == NOTHING else "known"


def _bar(finding: Finding, y: int) -> list[str]:
    reached = min(max(finding.recovered, 0.0), 1.0) * _SCALE
    mark = _LABEL + min(max(finding.baseline, 0.0), 1.0) * _SCALE
    name = escape(f"{finding.view}: {finding.attack}")
    title = escape(f"{finding.target}: {finding.recovered:.3f} against {finding.baseline:.3f}, {finding.verdict}")
    return [
        f'<g><title>{title}</title><text x="{_LABEL - 10}" y="{y + 13}" text-anchor="end">{name}</text>',
        f'<rect class="{kind(finding)}" x="{_LABEL}" y="{y + 3}" width="{max(reached, 1.0):.1f}" height="13"/>',
        f'<line class="mark" x1="{mark:.1f}" y1="{y}" x2="{mark:.1f}" y2="{y + 19}"/>',
        f'<text class="value" x="{_LABEL + max(reached, 1.0) + 6:.1f}" y="{y + 13}">{finding.recovered:.2f}</text></g>',
    ]
