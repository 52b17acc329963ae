"""Stacked bars as SVG: what a step's time is spent on."""
import dataclasses
import html

COLOURS = {"compute": "#4477aa", "lockstep": "#66ccee", "imbalance": "#ccbb44", "latency": "#ee6677", "bandwidth": "#aa3377"}
LEFT, WIDTH, BAR, GAP, GROUP = 90, 560, 16, 4, 26  # pixels


def text(x, y, words, anchor="start", weight="normal"):
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-weight="{weight}">{html.escape(words)}</text>'


def legend(y):
    parts, x = [], LEFT
    for name, colour in COLOURS.items():
        parts.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{colour}"/>')
        parts.append(text(x + 16, y, name))
        x += 100
    return parts


def bar(y, label, step):
    parts, x = [text(LEFT - 6, y + BAR - 4, label, "end")], float(LEFT)
    for field in dataclasses.fields(step):
        width = WIDTH * getattr(step, field.name) / step.seconds
        parts.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{COLOURS[field.name]}"/>')
        x += width
    parts.append(text(x + 6, y + BAR - 4, f"{step.seconds * 1e3:.1f} ms"))
    return parts


def bars(groups):
    """groups: [(title, [(label, StepTime)])]; each bar is a whole step, its length in milliseconds stands behind it."""
    parts, y = legend(20), 34
    for title, steps in groups:
        y += GROUP - 8
        parts.append(text(LEFT, y, title, weight="bold"))
        y += 6
        for label, step in steps:
            parts += bar(y, label, step)
            y += BAR + GAP
    size = f'width="{LEFT + WIDTH + 90}" height="{y + 10}"'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
                      '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>", ""])
