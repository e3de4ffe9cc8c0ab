"""A learning curve as SVG: mean episode return against env steps, one line per run folder.

    python -m benchmarks.curve runs/a runs/b ... --goal 475 --title "CartPole-v1, 5 seeds" > docs/cartpole.svg

Text and axes are in a grey that is readable on white and on black; the background is left as it is.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import metrics_of

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 360, 56, 16, 36, 46
GREY, LINE, GOAL = "#808890", "#2f81f7", "#d9730d"


def main() -> None:
    parser = argparse.ArgumentParser(description="learning curve as SVG")
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--goal", type=float)
    parser.add_argument("--title", default="")
    args = parser.parse_args()
    curves = [curve_of(run) for run in args.runs]
    print(draw(curves, args.goal, args.title))


def curve_of(run: Path) -> list[tuple[float, float]]:
    """(env steps, mean return of the last 100 episodes) after each update."""
    rows = [(row["time/total_timesteps"], row["rollout/ep_rew_mean"]) for row in metrics_of(run)]
    return [(steps, mean) for steps, mean in rows if mean is not None]


def draw(curves: Sequence[Sequence[tuple[float, float]]], goal: float | None, title: str) -> str:
    points = [point for curve in curves for point in curve]
    means = [mean for _, mean in points] + ([] if goal is None else [goal])
    low, high = min(0.0, *means), max(0.0, *means)
    most = max(steps for steps, _ in points)

    def x(steps: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * steps / most

    def y(mean: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - mean) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="{GREY}">',
        f'<text x="{LEFT}" y="20" font-size="15">{title}</text>',
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 8}" text-anchor="end">env steps</text>',
    ]
    for mean in ticks(low, high):
        parts.append(
            f'<path d="M{LEFT} {y(mean):.1f}H{WIDTH - RIGHT}" stroke="{GREY}" stroke-opacity=".25"/>'
            f'<text x="{LEFT - 8}" y="{y(mean) + 4:.1f}" text-anchor="end">{mean:g}</text>'
        )
    for steps in ticks(0.0, most):
        parts.append(f'<text x="{x(steps):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{steps:,.0f}</text>')
    if goal is not None:
        parts.append(f'<path d="M{LEFT} {y(goal):.1f}H{WIDTH - RIGHT}" stroke="{GOAL}" stroke-dasharray="6 4"/>')
        parts.append(f'<text x="{LEFT + 6}" y="{y(goal) + 16:.1f}" fill="{GOAL}">goal {goal:g}</text>')
    for curve in curves:
        path = "L".join(f"{x(steps):.1f} {y(mean):.1f}" for steps, mean in curve)
        parts.append(f'<path d="M{path}" fill="none" stroke="{LINE}" stroke-width="1.6" stroke-opacity=".8"/>')
    return "\n".join([*parts, "</svg>"])


def ticks(low: float, high: float) -> list[float]:
    """Four to ten round numbers from `low` to `high`."""
    raw = (high - low) / 5
    unit = 10.0 ** math.floor(math.log10(raw))
    step = unit * min((factor for factor in (1, 2, 5, 10)), key=lambda factor: abs(factor * unit - raw))
    return [step * number for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


if __name__ == "__main__":
    main()
