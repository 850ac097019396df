"""The picture of python -m ffpa.bench: grouped bars, one group a problem."""
import os
import textwrap


def check(parser, path):
    """Before anything is measured: can the picture be made?"""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError:
        parser.error("--plot needs matplotlib: pip install matplotlib")
    kind = os.path.splitext(path)[1][1:].lower()
    if kind not in FigureCanvasAgg.get_supported_filetypes():
        parser.error("--plot %s: a picture is a .png, .svg or .pdf" % path)


def plot(results, title, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    from .bench import speed_up
    # Rates of different units are not to be compared by height: one panel each.
    units = list(dict.fromkeys(rows[0].unit for rows in results))
    groups = {unit: [rows for rows in results if rows[0].unit == unit] for unit in units}
    widest = max(len(g) for g in groups.values())
    size = (max(7.0, 1.9 * widest + 2), 3.6 * len(units) + 0.9)
    figure, panels = pyplot.subplots(len(units), 1, figsize=size, squeeze=False)
    names = [r.implementation for r in results[0] if any(
        other.rate for rows in results for other in rows if other.implementation == r.implementation)]
    colours = dict(zip(names, ["#c0392b"] + ["#34495e", "#5d8aa8", "#8fb7cc", "#bfc9ca", "#7d8b69", "#a3ad85", "#d5c9a7"]))
    for panel, unit in zip(panels[:, 0], units):
        _bars(panel, groups[unit], names, colours, unit, speed_up)
        panel.set_xlim(-0.55, widest - 0.45)  # bars of one width in all panels
    if names:
        panels[0, 0].legend(ncol=len(names), frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1.0))
    figure.suptitle("\n".join(textwrap.wrap(title, 110)), fontsize=8, x=0.01, ha="left")
    figure.tight_layout(rect=(0, 0, 1, 0.97))
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _bars(panel, groups, names, colours, unit, speed_up):
    width = 0.8 / max(1, len(names))
    tallest = max((r.rate for rows in groups for r in rows if r.rate), default=1.0)
    for at, rows in enumerate(groups):
        for i, r in enumerate(r for r in rows if r.implementation in names):
            x = at - 0.4 + (i + 0.5) * width
            if r.rate is None:
                panel.text(x, 0, "n/a", rotation=90, ha="center", va="bottom", fontsize=6, color="#999999")
                continue
            panel.bar(x, r.rate, width * 0.94, color=colours[r.implementation],
                      label=r.implementation if at == 0 else None)
            if r.implementation == "ffpa":
                gain = speed_up(rows)
                text = "%.0f" % r.rate if r.rate >= 10 else "%.1f" % r.rate
                panel.text(x, r.rate + 0.01 * tallest, text + ("\n%.1fx" % gain if gain else ""), ha="center", va="bottom",
                           fontsize=7, fontweight="bold")
    for name in names:  # a name without a bar in the first group still belongs in the legend
        if not any(bar.get_label() == name for bar in panel.containers):
            panel.bar(0, 0, 0, color=colours[name], label=name)
    panel.set_xticks(range(len(groups)))
    panel.set_xticklabels([_in_lines(rows[0].problem) for rows in groups], fontsize=7)
    panel.set_ylabel(unit + " (below: times the fastest other)", fontsize=8)
    panel.set_ylim(0, tallest * 1.2)
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="y", color="#e5e5e5", linewidth=0.6)
    panel.set_axisbelow(True)


def _in_lines(problem):
    """fwd,bf16 / b1h32 / q8192k8192 / d512,causal"""
    parts = problem.split(",")
    return "\n".join([",".join(parts[:2]), *parts[2:4], ",".join(parts[4:])])
