"""The pictures of the theory notebook: where each bound is tight, where it is vacuous, what a loose constant costs.

Every function takes tidy tables (built by the theory package, exact numbers) and returns one matplotlib Figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

from scope_lite.figures.style import finish, panel_grid, title_with_legend

SHARP, SOURCE, WRONG, CEILING = "#0072B2", "#D55E00", "#CC79A7", "#000000"
GREEN, AMBER, SKY, GREY = "#009E73", "#E69F00", "#56B4E9", "#9a9a9a"
CLOUDS = {"random": (GREY, 4, 0.35), "gradient ascent": (GREEN, 8, 0.7)}
TALL = 2.6
"""inches of a row of panels that have a legend above them"""
EPSILON, GAP = "accumulated collapse error ε̄", "gradient gap / (B·R_max)"
STEP, ODDS, GAMMA, SIZE = "KL-regularised step", "odds of the exploit", "simulator's sharpness γ", "K checkpoints"


def _cloud(ax: Axes, table: pd.DataFrame, x: str, y: str) -> None:
    for kind, (colour, size, alpha) in CLOUDS.items():
        part = table[table.kind == kind]
        ax.scatter(part[x], part[y], s=size, color=colour, alpha=alpha, linewidths=0, label=kind, rasterized=True)


def _lines(ax: Axes, table: pd.DataFrame, by: str, x: str, y: str, colours: Sequence[str], **look: Any) -> None:
    """A line a value of the column ``by``, in the order of the table."""
    for (name, part), colour in zip(table.groupby(by, sort=False), colours, strict=False):
        ax.plot(part[x], part[y], color=colour, label=name, **look)


def _vacuous(ax: Axes, y: float = 1, label: str = "") -> None:
    ax.axhline(y, color=CEILING, ls=":", lw=1, label=label or "_nolegend_")


def _finish(ax: Axes, title: str, x: str = "", y: str = "", log: str = "", ncols: int = 1, **limits: Any) -> None:
    """Labels, logarithmic scales ("x", "y", "xy") and limits of a panel, and its title and legend above it.

    Markers of clouds are large and opaque enough in the legend to be recognised.
    """
    ax.set(**{f"{axis}scale": "log" for axis in log}, xlabel=x, ylabel=y, **limits)
    for handle in title_with_legend(ax, title, ncols).legend_handles:
        if isinstance(handle, PathCollection):
            handle.set(alpha=1.0, sizes=[16])


def plot_gradient_bias(cloud: pd.DataFrame, long: pd.DataFrame, rare: pd.DataFrame) -> Figure:
    """Theorem 3.2: the cloud of instances under the bounds, long dialogues, and B as a root mean square.

    Columns: cloud epsilon, gap, kind; long per_turn, epsilon, gap; rare epsilon, sup, rms (left/right).
    """
    fig, (a, b, c) = panel_grid(3, TALL, fill=True)
    _cloud(a, cloud[(cloud.epsilon > 1e-3) & (cloud.gap > 1e-5)], "epsilon", "gap")
    tight = cloud[(cloud.kind == "one bit") & (cloud.epsilon > 1e-3) & (cloud.gap > 1e-5)]
    a.scatter(tight.epsilon, tight.gap, marker="D", s=16, color=CEILING, zorder=4, label="one bit (tight)")
    x = np.geomspace(1e-3, 2, 100)
    a.plot(x, 2 * x, color=SOURCE, label="source, 2ε̄")
    a.plot(x, x, color=SHARP, label="sharp, ε̄")
    _vacuous(a)
    _finish(a, "(a) no instance above the line", EPSILON, GAP, log="xy", ylim=(1e-5, 6))
    b.plot(long.per_turn, 2 * long.epsilon, color=SOURCE, label="source, 2ε̄")
    b.plot(long.per_turn, long.epsilon, color=SHARP, ls="--", label="ε̄, constant 1")
    b.plot(long.per_turn, long.deviation, color=SHARP, lw=3, alpha=0.5, label="P(some deviation)")
    b.plot(long.per_turn, long.gap, color=CEILING, lw=1, label="exact gap")
    _vacuous(b)
    b.axhspan(1, 3.2, color="#dddddd", alpha=0.5, lw=0)
    b.text(0.02, 2.85, "vacuous", color="#555555")
    _finish(b, "(b) a loose constant's cost", "collapse error ε a turn", "in units of B·R_max", ylim=(0, 3.2))
    c.plot(rare.epsilon, rare.rms, color=WRONG, label="B = root mean square")
    c.plot(rare.epsilon, rare["sup"], color=SHARP, label="B = supremum")
    _vacuous(c)
    _finish(c, "(c) a rare act breaks the root mean square", EPSILON, "left side / right side", log="xy")
    return fig


def plot_variance(cloud: pd.DataFrame, examples: pd.DataFrame) -> Figure:
    """Lemma 3.3: the simulator's variance under its bound, and four dialogues with their variance split.

    Columns: cloud epsilon, simulator, kind; examples case, epsilon, policy, simulator, given_acts.
    """
    fig, (a, b) = panel_grid(2, 3.4)
    _cloud(a, cloud, "epsilon", "simulator")
    x = np.linspace(0, cloud.epsilon.max(), 200)
    capped = np.minimum(x, 0.5)
    a.plot(x, x, color=SOURCE, label="source, ε̄")
    a.plot(x, capped * (1 - capped), color=SHARP, label="sharp, g(ε̄)")
    _finish(a, "(a) the bound, Doob's split", EPSILON, "simulator's variance / R_max²", ylim=(0, 0.4))
    place = np.arange(len(examples))
    b.bar(place - 0.2, examples.policy, 0.36, color="#bbbbbb", label="Doob: by the policy")
    b.bar(place - 0.2, examples.simulator, 0.36, bottom=examples.policy, color=SHARP, label="Doob: by the simulator")
    b.bar(place + 0.2, examples.given_acts, 0.36, color=WRONG, label="left over, given the acts")
    for i, row in enumerate(examples.itertuples()):
        b.text(i, 0.265, f"ε̄ = {row.epsilon:.2f}", ha="center", fontsize=6.5)
    b.set_xticks(place, examples.case, rotation=50, ha="right")
    _finish(b, "(b) who made the variance", "", "share of Var(R), R_max = 1", ylim=(0, 0.29))
    return fig


def plot_kl_step(cloud: pd.DataFrame, sizes: pd.DataFrame) -> Figure:
    """Proposition 3.4: no rival gains more than the step, and no other step size along its path either.

    Columns: cloud left (rival's gain), right (the step's gain), kind; sizes instance, multiplier, share.
    """
    fig, (a, b) = panel_grid(2, TALL, extra=0)
    _cloud(a, cloud, "right", "left")
    a.axline((0, 0), slope=1, color=SHARP, label="equal gain")
    top = float(cloud.right.quantile(0.98))
    _finish(a, "(a) rivals", "gain of π_k·exp(ηA)", "gain of a rival policy", xlim=(0, top), ylim=(-2 * top, 1.1 * top))
    for i, (_, part) in enumerate(sizes.groupby("instance")):
        label = "an instance" if i == 0 else "_nolegend_"
        b.plot(part.multiplier, part.share, color=GREY, lw=0.8, alpha=0.7, label=label)
    b.axvline(1, color=SHARP, lw=1, label="the step, c = 1")
    _finish(b, "(b) the path of step sizes", "c in exp(c·ηA)", "share of the best gain", ylim=(-0.2, 1.1))
    return fig


def plot_concentration(laws: pd.DataFrame, entropy: pd.DataFrame, jackpot: pd.DataFrame) -> Figure:
    """Corollary 3.5: growth laws of the odds, entropy along the way, and a gap of means that shrinks the odds.

    Columns: laws update, step, odds; entropy step, inside, entropy, ceiling; jackpot gap, step, odds.
    """
    fig, (a, b, c) = panel_grid(3, TALL, fill=True)
    _lines(a, laws.assign(step=laws.step.clip(lower=1)), "update", "step", "odds", (SOURCE, GREEN, GREEN, SHARP))
    a.get_lines()[2].set_linestyle("--")
    _finish(a, "(a) geometric, t², t", "step", ODDS, log="xy", ylim=(0.08, 1e7))
    b.plot(entropy.step, entropy.ceiling, color=GREY, ls="--", label="ceiling at this π(A_x)")
    b.plot(entropy.step, entropy.entropy, color=SHARP, label="entropy")
    b.plot(entropy.step, entropy.inside, color=SOURCE, label="π(A_x)")
    _vacuous(b, np.log(3), "log|A_x|")
    _finish(b, "(b) entropy rises first, stays", STEP, "nats (entropy) or share", ylim=(0, 2.5))
    _lines(c, jackpot, "gap", "step", "odds", (SHARP, WRONG), marker="o", ms=3)
    _finish(c, "(c) a gap of means is not enough", STEP, ODDS, log="y")
    return fig


def plot_measured_odds(odds: pd.DataFrame, law: pd.DataFrame, rates: pd.DataFrame) -> Figure:
    """Measured odds by seed, the geometric continuation of their early growth, and late against early growth.

    Columns: odds run, source, seed, step, odds_exploit; law run, source, step, odds_exploit; rates source, early, late.
    """
    fig, (a, b) = panel_grid(2, 2.8)
    palette = (SOURCE, SHARP, GREEN, WRONG, AMBER, SKY)
    for ((run, source), part), colour in zip(odds.groupby(["run", "source"], sort=False), palette, strict=False):
        for i, (_, one) in enumerate(part.groupby("seed")):
            label = f"{run}: {source}" if i == 0 else "_nolegend_"
            a.plot(one.step, one.odds_exploit, color=colour, lw=0.9, alpha=0.8, label=label)
        line, pair = (t[(t.run == run) & (t.source == source)] for t in (law, rates))
        a.plot(line.step, line.odds_exploit, color=colour, ls="--", lw=1.2)
        pair = pair.dropna()
        b.scatter(pair.early, pair.late, color=colour, s=18)
    a.plot([], [], color="#555555", ls="--", label="early growth, continued")
    a.set(yscale="log", xlabel="training step", ylabel=ODDS, title="(a) odds leave the geometric line")
    a.set_ylim(top=float(odds.odds_exploit.max()) * 30)
    growth = rates[["early", "late"]].to_numpy()
    shown = growth[np.isfinite(growth) & (growth > 0)]
    ends = (shown.min() / 1.5, shown.max() * 1.5) if len(shown) else (0.01, 1.0)
    b.plot(ends, ends, color=CEILING, ls=":", label="late as early: geometric")
    b.set(xscale="log", yscale="log", xlabel="early growth (nats a step)", ylabel="late growth (nats a step)")
    b.set(xlim=ends, ylim=ends, title="(b) one dot a seed")
    return finish(fig)


def plot_regret(sweep: pd.DataFrame, cloud: pd.DataFrame) -> Figure:
    """Proposition 3.6: regrets and their bounds as more users fall outside, and the cloud for the second bound.

    Columns: sweep rho, oracle, oracle_bound, single, single_bound; cloud left (bound), right (regret), kind.
    """
    fig, (a, b) = panel_grid(2, 2.9, extra=0)
    a.plot(sweep.rho, sweep.oracle, color=GREY, lw=4, alpha=0.6, label="regret, oracle")
    a.plot(sweep.rho, sweep.oracle_bound, color=SOURCE, label="ρδπ(A_x)")
    a.plot(sweep.rho, sweep.single, color=SKY, lw=4, alpha=0.6, label="regret, best single policy")
    a.plot(sweep.rho, sweep.single_bound.clip(lower=-0.2), color=SHARP, ls="--", label="π(A_x)(ρδ − (1−ρ)·gain)")
    a.fill_between(sweep.rho, sweep.single, sweep.oracle_bound, color=SOURCE, alpha=0.08, lw=0)
    arrow = {"arrowstyle": "-", "color": SOURCE, "lw": 0.7}
    a.annotate("not lost", (0.4, 0.27), (0.5, 0.05), color=SOURCE, fontsize=7, arrowprops=arrow)
    _finish(a, "(a) π = the exploit,\nthe rival earns .8", "ρ, share out of its reach", "regret", ylim=(-0.05, 1.05))
    _cloud(b, cloud, "right", "left")
    b.axline((0, 0), slope=1, color=SHARP, label="bound = regret")
    _finish(b, "(b) many deployments", "regret, best single policy", "bound", ylim=(-0.6, 0.7), xlim=(0, 0.7))
    return fig


def plot_dose_response(table: pd.DataFrame) -> Figure:
    """Proposition 3.7: gradient gap as the recovered distribution moves away from the reference.

    Columns: kind, instance, dial, distance (η̄), gap (in units of B·R_max).
    """
    fig, (ax,) = panel_grid(1, 3.5, extra=0)
    colours = {"random": GREY, "gradient ascent": GREEN, "one bit": CEILING}
    for kind, group in table.groupby("kind", sort=False):
        width, style = (1.6, ":") if kind == "one bit" else (0.7, "-")
        for i, part in group.groupby("instance"):
            label = kind if i == 0 else "_nolegend_"
            ax.plot(part.distance, part.gap, color=colours[kind], lw=width, ls=style, alpha=0.8, label=label, zorder=3)
    x = np.linspace(0, table.distance.max(), 50)
    ax.plot(x, 2 * x, color=SOURCE, label="source, 2η̄")
    ax.plot(x, x, color=SHARP, label="sharp, η̄")
    _vacuous(ax, label="vacuous above")
    title, x_label = "dose and response: one line a process", "η̄, accumulated distance from the reference P"
    _finish(ax, title, x_label, GAP, ncols=3, ylim=(0, 1.9))
    return fig


def plot_nano_bias(table: pd.DataFrame) -> Figure:
    """Theorem 3.2 and Lemma 3.3 in a nano world, by sharpness of its simulator.

    Columns: policy, gamma, epsilon, deviation, gap (in units of B·R_max), relative, simulator_share.
    """
    fig, (a, b, c) = panel_grid(3, TALL, fill=True)
    name = table.policy.iloc[0]
    one = table[table.policy == name]
    a.plot(one.gamma, 2 * one.epsilon, color=SOURCE, label="source, 2ε̄")
    a.plot(one.gamma, one.deviation, color=SHARP, label="sharp, P(some deviation)")
    a.plot(one.gamma, one.gap, color=CEILING, marker="o", ms=3, label="exact gap")
    _vacuous(a)
    _finish(a, f"(a) the bound, policy: {name}", GAMMA, "in units of B·R_max", log="y")
    for ax, title, column, label in (
        (b, "(b) how far it really moves", "relative", "gap / ‖∇J‖"),
        (c, "(c) who makes the variance", "simulator_share", "simulator's share of Var(R)"),
    ):
        _lines(ax, table, "policy", "gamma", column, (CEILING, SOURCE, SHARP), marker="o", ms=3)
        _finish(ax, title, GAMMA, label, ylim=(0, None))
    return fig


def plot_sharpening(curves: pd.DataFrame) -> Figure:
    """Proposition F.1: the tight case, the two false readings of λ, and γ < 1.

    Columns: case, gamma, curve (exact, source, sharp, λ = m/ρ, λ = max/max), value.
    """
    fig, axes = panel_grid(4, TALL, extra=0)
    panels = (
        ("two_levels", ("source", "sharp"), "tight"),
        ("lumpy", ("source", "λ = m/ρ"), "λ read as m/ρ fails"),
        ("uneven_major", ("source", "λ = max/max"), "λ read as max/max fails"),
        ("long_tail", ("source",), "γ < 1 fails"),
    )
    colours = {"source": SOURCE, "sharp": SHARP, "λ = m/ρ": WRONG, "λ = max/max": WRONG}
    for ax, (case, names, text), letter in zip(axes, panels, "abcd", strict=True):
        lines = dict(iter(curves[curves.case == case].groupby("curve")))
        ax.plot(lines["exact"].gamma, lines["exact"].value, color=CEILING, lw=3, alpha=0.45, label="P_γ(rare), exact")
        for name in names:
            ax.plot(lines[name].gamma, lines[name].value, color=colours[name], ls="--", label=name)
        mass = "mass of the rare set" if letter in "ac" else ""
        _finish(ax, f"({letter}) {text}", "γ", mass, log="" if case == "long_tail" else "y")
    return fig


def plot_population(sizes: pd.DataFrame, odds: pd.DataFrame, model: pd.DataFrame) -> Figure:
    """Lemma B.9: what divides an exploit's advantage, growth that stays geometric, and a MODEL of the best K.

    Columns: sizes pool, K, gap; odds K, step, odds; model cost, K, loss, optimum.
    """
    fig, (a, b, c) = panel_grid(3, TALL, fill=True)
    _lines(a, sizes, "pool", "K", "gap", (SHARP, AMBER, WRONG, GREEN), marker="o", ms=3)
    _finish(a, "(a) K counts if modes differ", SIZE, "best exploit's advantage / Δ", ylim=(0, 1.05))
    for (k, part), alpha in zip(odds.groupby("K"), (1.0, 0.75, 0.5, 0.3), strict=True):
        b.plot(part.step, part.odds, color=GREEN, alpha=alpha, label=f"K = {k}")
    _finish(b, "(b) slower, still geometric", STEP, "odds of one exploit", log="y", ncols=2, ylim=(0.5, 1e6))
    for (cost, part), colour in zip(model.groupby("cost"), (SHARP, AMBER, SOURCE), strict=True):
        c.plot(part.K, part.loss, color=colour, label=f"cost {cost:g} a step of age")
        best = part.loc[part.loss.idxmin()]
        c.plot(best.K, best.loss, "o", color=colour, ms=5)
    _finish(c, "(c) MODEL: an assumed cost of staleness", SIZE, "assumed loss", ylim=(0, None))
    return fig
