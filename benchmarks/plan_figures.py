"""The figures of docs/plan-both-together.md, drawn as SVG from the measured tables, and the numbers in its text.

Run: python -m benchmarks.plan_figures
"""

from __future__ import annotations

import math
from pathlib import Path

from benchmarks.plan_truth import Truth, truth_of
from benchmarks.smoke import either, few

OUT = Path(__file__).resolve().parent.parent / "docs"
TASK = "cifar10"
_WIDTH, _HEIGHT, _MARGIN = 640, 300, 52
_COLOURS = ("#2a6fb0", "#d2452d", "#3d8b4f", "#8a5bb0", "#b07a2a")


def chart(title: str, x_name: str, y_name: str, lines: dict[str, list[tuple[float, float]]]) -> str:
    """Lines over a logarithmic x."""
    points = [point for line in lines.values() for point in line]
    xs, ys = [math.log(x) for x, _ in points], [y for _, y in points]
    low_x, high_x, low_y, high_y = min(xs), max(xs), min(0.0, *ys), max(ys)

    def place(x: float, y: float) -> tuple[float, float]:
        right = _MARGIN + (math.log(x) - low_x) / (high_x - low_x) * (_WIDTH - 2 * _MARGIN - 90)
        return right, _HEIGHT - _MARGIN - (y - low_y) / (high_y - low_y) * (_HEIGHT - 2 * _MARGIN)

    parts = [f'<text x="{_MARGIN}" y="20" font-weight="bold">{title}</text>']
    parts.append(
        f'<path d="M{_MARGIN} {_MARGIN - 12}V{_HEIGHT - _MARGIN}H{_WIDTH - _MARGIN - 80}" fill="none" stroke="#888"/>'
    )
    for x in sorted({x for x, _ in points})[:: max(len({x for x, _ in points}) // 8, 1)]:
        parts.append(
            f'<text x="{place(x, low_y)[0]:.0f}" y="{_HEIGHT - 34}" text-anchor="middle">{x:g}</text>'
        )
    for k in range(5):
        y = low_y + k / 4 * (high_y - low_y)
        parts.append(
            f'<text x="{_MARGIN - 6}" y="{place(math.exp(low_x), y)[1] + 4:.0f}" text-anchor="end">{y:.3g}</text>'
        )
    parts.append(f'<text x="{_WIDTH - 140}" y="{_HEIGHT - 12}" text-anchor="end">{x_name}</text>')
    parts.append(f'<text x="{_MARGIN - 40}" y="38">{y_name}</text>')
    for colour, (name, line) in zip(_COLOURS, lines.items(), strict=False):
        path = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        x, y = place(*line[-1])
        parts.append(f'<text x="{x + 5:.0f}" y="{y + 4:.0f}" fill="{colour}">{name}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
    )


def by_batch(truth: Truth, replicas: int, target: float) -> list[tuple[int, float, float, float]]:
    """(batch, pass time, passes, GPU-hours) on a number of GPUs."""
    found = []
    for option in truth.options:
        if option.replicas == replicas:
            passes, _ = truth.passes_to(option.batch, target)
            pass_s = truth.pass_s[option]
            found.append((option.batch, pass_s, passes, passes * pass_s * replicas / 3600))
    return sorted(found)


def main() -> None:
    """Writes three figures and prints the numbers."""
    truth = truth_of(TASK)
    target = truth.target(0.96)
    sizes = few((1, 4, 8, 16, 32), 2)
    rows = {replicas: by_batch(truth, replicas, target) for replicas in sizes}
    passes = sorted({(batch, needed) for found in rows.values() for batch, _, needed, _ in found})
    figures = {
        "plan-pass-time.svg": chart(
            "One pass: larger batches are faster, the more so the more GPUs",
            "batch size",
            "seconds of a pass",
            {f"{k} GPUs": [(b, s) for b, s, _, _ in rows[k]] for k in sizes},
        ),
        "plan-passes.svg": chart(
            f"Passes to {target:.3f}: larger batches need more",
            "batch size",
            "passes",
            {"any GPUs": list(passes)},
        ),
        "plan-cost.svg": chart(
            "What it costs: the best batch size depends on the GPUs",
            "batch size",
            "GPU-hours",
            {f"{k} GPUs": [(b, c) for b, _, _, c in rows[k]] for k in sizes},
        ),
    }
    if either(False, True):
        for name, text in figures.items():
            (OUT / name).write_text(text)
    for replicas, found in rows.items():
        batch, pass_s, needed, cost = min(found, key=lambda row: row[3])
        print(
            f"{replicas} GPUs: best batch {batch}, {pass_s:.1f} s a pass, {needed:.1f} passes, {cost:.2f} GPU-hours"
        )
    fastest = truth.fastest(target)
    for factor in (1.25, 2.5, 4.0):
        good = [o for o in truth.options if truth.time_to(o, target) <= factor * fastest]
        best = min(good, key=lambda o: truth.time_to(o, target) * o.gpus)
        initial = min(truth.curves)
        fixed = [o for o in good if o.batch == initial]
        alone = (
            f"{min(truth.time_to(o, target) * o.gpus for o in fixed) / 3600:.2f}" if fixed else "impossible"
        )
        paid = truth.time_to(best, target) * best.gpus / 3600
        print(
            f"deadline {factor * fastest / 60:.1f} min: {best.gpus} GPUs, batch {best.batch}, {paid:.2f} GPU-hours; with batch {initial}: {alone}"
        )


if __name__ == "__main__":
    main()
