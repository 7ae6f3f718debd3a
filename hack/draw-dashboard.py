#!/usr/bin/python3
"""Draws the dashboard of the chart as a picture: draw-dashboard.py URL MINUTES FILE.png

It asks the queries of the panels of the Prometheus at URL, for the last MINUTES. Needs Debian's
python3-matplotlib. The picture in docs/monitoring.md is of the demo. In ten minutes, a person scaled
and restarted Deployments, updated a SidecarSet, created Pods that are refused, applied a SidecarSet
late, wrote waiting sidecars into statuses of Pods (of a scheduler that does not exist, so that no
simulated node corrects them), and created the webhook configuration of another injector.
"""
import json, re, sys, time, urllib.parse, urllib.request
from datetime import datetime

import matplotlib
matplotlib.use("Agg")
import matplotlib.dates as dates
import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator

url, minutes, out = sys.argv[1].rstrip("/"), float(sys.argv[2]), sys.argv[3]
end = time.time()
begin = end - 60 * minutes
step = max(5, int(60 * minutes / 240))


def ask(expr):
    expr = expr.replace("$__rate_interval", "1m").replace("$sidecarset", ".+")
    query = urllib.parse.urlencode({"query": expr, "start": begin, "end": end, "step": step})
    with urllib.request.urlopen(f"{url}/api/v1/query_range?{query}") as answer:
        return json.load(answer)["data"]["result"]


def seconds(v):
    for size, unit in ((86400, " d"), (3600, " h"), (60, " min"), (1, " s"), (1e-3, " ms")):
        if abs(v) >= size:
            return f"{v / size:.3g}{unit}"
    return "0" if v == 0 else f"{v * 1e6:.3g} µs"


def shown(unit, v):
    return seconds(v) if unit == "s" else f"{v:.3g}" + ("/s" if unit == "ops" else "")


def times(result):
    return [datetime.fromtimestamp(t) for t, _ in result["values"]], [float(v) for _, v in result["values"]]


def with_gaps(ts, vs):
    """The values, without a line across a time in which the series had none."""
    return [float("nan") if i and (ts[i] - ts[i - 1]).total_seconds() > 1.5 * step else v for i, v in enumerate(vs)]


dashboard = json.load(open("charts/sidecarset/dashboards/sidecarset.json"))
rows = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in dashboard["panels"])
plt.rcParams.update({"font.size": 8, "axes.titlesize": 9, "axes.titleweight": "bold", "axes.grid": True, "grid.alpha": 0.3})
figure = plt.figure(figsize=(14, rows * 0.32))
empty = []
for panel in dashboard["panels"]:
    grid, unit = panel["gridPos"], panel.get("fieldConfig", {}).get("defaults", {}).get("unit")
    left, width = grid["x"] / 24, grid["w"] / 24
    top, height = 1 - grid["y"] / rows, grid["h"] / rows
    if panel["type"] == "row":
        figure.text(0.005, top - height * 0.8, panel["title"], fontsize=11, weight="bold", color="0.3")
        continue
    if panel["type"] == "stat":
        values = [float(r["values"][-1][1]) for t in panel["targets"] for r in ask(t["expr"])]
        empty += [] if values else [panel["title"]]
        figure.text(left + width / 2, top - height * 0.25, panel["title"], ha="center", weight="bold")
        figure.text(left + width / 2, top - height * 0.75, shown(unit, values[0]) if values else "no data", ha="center", fontsize=18, color="tab:green")
        continue
    axes = figure.add_axes((left + 0.045, top - height + 0.038, width - 0.06, height - 0.056))
    series = []
    for target in panel["targets"]:
        for result in sorted(ask(target["expr"]), key=lambda r: sorted(r["metric"].items())):
            name = re.sub(r"{{(\w+)}}", lambda m: result["metric"].get(m[1], ""), target["legendFormat"])
            series.append((name, *times(result)))
    if panel["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"] == "normal" and series:
        at = sorted({t for _, ts, _ in series for t in ts})
        tables = [dict(zip(ts, vs)) for _, ts, vs in series]
        axes.stackplot(at, [[table.get(t, 0) for t in at] for table in tables], labels=[n for n, _, _ in series], alpha=0.6)
    else:
        for name, ts, vs in series:
            axes.plot(ts, with_gaps(ts, vs), label=name, linewidth=1.3)
    empty += [] if series else [panel["title"]]
    axes.set_title(panel["title"], loc="left")
    axes.set_xlim(datetime.fromtimestamp(begin), datetime.fromtimestamp(end))
    highest = max([v for _, _, vs in series for v in vs if v == v] + [axes.get_ylim()[1] / 1.05])
    axes.set_ylim(0, 1.1 * max(highest, 1 if unit == "none" else 0))
    if unit == "none":
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    elif unit == "s" and highest > 5 * 86400:
        axes.yaxis.set_major_locator(MultipleLocator(86400 * max(1, round(highest / 86400 / 50) * 10)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _, unit=unit: shown(unit, v)))
    axes.xaxis.set_major_locator(dates.MinuteLocator(byminute=range(0, 60, max(1, round(minutes / 8)))))
    axes.xaxis.set_major_formatter(dates.DateFormatter("%H:%M"))
    if series:
        axes.legend(loc="upper left", bbox_to_anchor=(-0.02, -0.12), fontsize=7, frameon=False, ncols=min(len(series), 5 if grid["w"] > 8 else 2), columnspacing=1)
figure.savefig(out, dpi=80)
print("empty panels:", empty or "none")
