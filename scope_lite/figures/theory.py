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
from matplotlib.ticker import MaxNLocator

from scope_lite.figures.style import finish, panel_grid, title_with_legend

SHARP, PAPER, WRONG, CEILING = "#0072B2", "#D55E00", "#CC79A7", "#000000"
GREEN, AMBER, SKY, GREY = "#009E73", "#E69F00", "#56B4E9", "#9a9a9a"
CLOUDS = {"random": (GREY, 4, 0.35), "gradient ascent": (GREEN, 8, 0.7)}
TALL = 2.6
"""inches of a row of panels that have a legend above them"""
EPSILON, GAP = "accumulated collapse error ε̄", r"gradient gap / ($B\,R_{\max}$)"
UNITS, SHARE = r"in units of $B\,R_{\max}$", r"$\pi(A_x)$"
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
    a.plot(x, 2 * x, color=PAPER, label="paper, 2ε̄")
    a.plot(x, x, color=SHARP, label="sharp, ε̄")
    _vacuous(a)
    _finish(a, "(a) None passes the blue line", EPSILON, GAP, log="xy", ylim=(1e-5, 6))
    b.plot(long.per_turn, 2 * long.epsilon, color=PAPER, label="paper, 2ε̄")
    b.plot(long.per_turn, long.epsilon, color=SHARP, ls="--", label="ε̄, constant 1")
    b.plot(long.per_turn, long.deviation, color=SHARP, lw=3, alpha=0.5, label="P(some deviation)")
    b.plot(long.per_turn, long.gap, color=CEILING, lw=1, label="exact gap")
    _vacuous(b)
    b.axhspan(1, 3.2, color="#dddddd", alpha=0.5, lw=0)
    b.text(0.02, 2.85, "vacuous", color="#555555")
    _finish(b, "(b) A loose constant's cost", "collapse error ε a turn", UNITS, ylim=(0, 3.2))
    c.plot(rare.epsilon, rare.rms, color=WRONG, label="B = root mean square")
    c.plot(rare.epsilon, rare["sup"], color=SHARP, label="B = supremum")
    _vacuous(c)
    _finish(c, "(c) B as a root mean square fails after rare acts", EPSILON, "left side / right side", log="xy")
    return fig


def plot_variance(cloud: pd.DataFrame, examples: pd.DataFrame) -> Figure:
    """Lemma 3.3: the simulator's variance under its bound, and four dialogues with their variance split.

    Columns: cloud deviation, simulator, kind; examples case, epsilon, policy, simulator, given_acts.
    """
    fig, (a, b) = panel_grid(2, 3.0, extra=0)
    _cloud(a, cloud, "deviation", "simulator")
    x = np.linspace(0, 1, 200)
    capped = np.minimum(x, 0.5)
    a.plot(x, x, color=PAPER, label="paper")
    a.plot(x, capped * (1 - capped), color=SHARP, label="sharp, g")
    _finish(a, "(a) Capped at a quarter", "P(some deviation)", r"by the simulator / $R_{\max}^2$", ylim=(0, 0.4))
    place = np.arange(len(examples))
    b.barh(place - 0.2, examples.policy, 0.36, color="#bbbbbb", label="the policy's coins")
    b.barh(place - 0.2, examples.simulator, 0.36, left=examples.policy, color=SHARP, label="the simulator")
    b.barh(place + 0.2, examples.given_acts, 0.36, color=WRONG, label="left over, given the acts")
    for i, row in enumerate(examples.itertuples()):
        b.text(0.004, i - 0.52, f"{row.case}, ε̄ = {row.epsilon:.2g}", fontsize=6.5, va="center")
        for y, width in ((i - 0.2, row.policy + row.simulator), (i + 0.2, row.given_acts)):
            b.text(0.004, y, "" if width > 1e-9 else "0", fontsize=6.5, va="center")
    b.set_yticks([])
    b.set_ylim(len(examples) - 0.5, -0.8)
    b.grid(False)
    _finish(b, "(b) Who made the variance", "part of Var(R)", xlim=(0, 0.3))
    return fig


def plot_concentration(laws: pd.DataFrame, entropy: pd.DataFrame, growth: pd.DataFrame) -> Figure:
    """Proposition 3.4, Corollary 3.5: growth under its bound, growth laws of the odds, and entropy along the way.

    Columns: laws update, step, odds; entropy step, inside, entropy, ceiling; growth kind, rate, growth (nats).
    """
    fig, (a, b, c) = panel_grid(3, TALL, fill=True)
    _cloud(a, growth, "rate", "growth")
    a.axline((0, 0), slope=1, color=SHARP, label="growth = bound")
    low, high = growth.rate.quantile([0.02, 1.0])
    _finish(a, "(a) No step below its bound", r"bound $g_x$ (nats)", "growth of the log-odds")
    a.set(xlim=(low, high), ylim=(low, high + 1))
    _lines(b, laws.assign(step=laws.step.clip(lower=1)), "update", "step", "odds", (PAPER, GREEN, GREEN, SHARP))
    b.get_lines()[2].set_linestyle("--")
    _finish(b, "(b) Only one is geometric", "step", ODDS, log="xy", ylim=(0.08, 1e7))
    c.plot(entropy.step, entropy.ceiling, color=GREY, ls="--", label=f"entropy's ceiling at this {SHARE}")
    c.plot(entropy.step, entropy.entropy, color=SHARP, label="entropy (nats)")
    c.plot(entropy.step, entropy.inside, color=PAPER, label=f"{SHARE}, a share")
    _vacuous(c, np.log(3), r"$\log|A_x|$")
    _finish(c, "(c) Entropy rises first, and need not end at 0", STEP, "", ncols=2, ylim=(0, 2.5))
    return fig


def plot_moving_target(chase: pd.DataFrame, target: pd.DataFrame) -> Figure:
    """Lemma B.5, Corollary B.6, Remark B.10: log-odds after a moving simulator, and what three rewards make of it.

    Columns: chase target, path, step, log_odds; target reward, step, success.
    """
    fig, (a, b) = panel_grid(2, 2.9, extra=0)
    for (name, part), colour in zip(chase.groupby("target", sort=False), (SHARP, PAPER, GREEN), strict=True):
        width = 1.8 if part.path.nunique() == 1 else 0.7
        for i, one in part.groupby("path"):
            a.plot(one.step, one.log_odds, color=colour, lw=width, label="_nolegend_" if i else name)
    _vacuous(a, 0, "orange's floor by Lemma B.5")
    _finish(a, "(a) Weigh leads, do not count", STEP, "log-odds of y against y' (nats)", ylim=(-45, 45))
    _lines(b, target, "reward", "step", "success", (PAPER, AMBER, SHARP))
    _vacuous(b, 0.5, "most variance")
    _finish(b, "(b) Two rewards freeze it", "simulator's step", "a fixed policy's success", ylim=(-0.03, 1.03))
    return fig


def plot_exploit_sets(table: pd.DataFrame, runs: pd.DataFrame) -> Figure:
    """Lemma B.5 in real runs: who leads by how much, step by step, and what log-odds became of it.

    Columns: table variant, seed, step, advantage (Q_k(y) − Q_k(y')); runs variant, advantage (summed), log_odds.
    """
    fig, (a, b) = panel_grid(2, 2.9)
    palette = dict(zip(runs.variant.unique(), (SHARP, PAPER, AMBER, GREEN), strict=False))
    for (variant, seed), one in table.groupby(["variant", "seed"], sort=False):
        a.plot(one.step, one.advantage, color=palette[variant], lw=1, label=variant if seed == 0 else "_nolegend_")
    for variant, part in runs.groupby("variant", sort=False):
        b.plot(part.advantage, part.log_odds, "o", ms=4.5, color=palette[variant], alpha=0.8)
    agree = int((np.sign(runs.advantage) == np.sign(runs.log_odds)).sum())
    for ax in (a, b):
        ax.axhline(0, color=CEILING, lw=0.8, ls=":")
    b.axvline(0, color=CEILING, lw=0.8, ls=":")
    a.set(
        xlabel="training step",
        ylabel="the exploit's value less\nthat of ask, then match",
        title="(a) Leads of unequal size",
    )
    b.set(
        xlabel="sum of these values",
        ylabel="log-odds won (nats)",
        title=f"(b) Signs agree in {agree} of {len(runs)}",
    )
    return finish(fig)


def plot_measured_odds(odds: pd.DataFrame, law: pd.DataFrame, rates: pd.DataFrame) -> Figure:
    """Measured odds by seed, the geometric continuation of their early growth, and late against early growth.

    Columns: odds run, source, seed, step, odds_exploit; law run, source, step, odds_exploit; rates source, early, late.
    """
    fig, (a, b) = panel_grid(2, 2.8)
    palette = (PAPER, SHARP, GREEN, WRONG, AMBER, SKY)
    for ((run, source), part), colour in zip(odds.groupby(["run", "source"], sort=False), palette, strict=False):
        for i, (_, one) in enumerate(part.groupby("seed")):
            label = f"{run}: {source}" if i == 0 else "_nolegend_"
            a.plot(one.step, one.odds_exploit, color=colour, lw=0.9, alpha=0.8, label=label)
        line, pair = (t[(t.run == run) & (t.source == source)] for t in (law, rates))
        a.plot(line.step, line.odds_exploit, color=colour, ls="--", lw=1.2)
        pair = pair.dropna()
        b.scatter(pair.early, pair.late, color=colour, s=18)
    a.plot([], [], color="#555555", ls="--", label="early growth, continued")
    a.set(yscale="log", xlabel="training step", ylabel=ODDS, title="(a) Odds leave the geometric line")
    a.set_ylim(top=float(odds.odds_exploit.max()) * 30)
    growth = rates[["early", "late"]].to_numpy()
    shown = growth[np.isfinite(growth) & (growth > 0)]
    ends = (shown.min() / 1.5, shown.max() * 1.5) if len(shown) else (0.01, 1.0)
    b.plot(ends, ends, color=CEILING, ls=":", label="late as early: geometric")
    b.set(xscale="log", yscale="log", xlabel="early growth (nats a step)", ylabel="late growth (nats a step)")
    b.set(xlim=ends, ylim=ends, title="(b) One dot a seed")
    return finish(fig)


def plot_regret(sweep: pd.DataFrame, cloud: pd.DataFrame) -> Figure:
    """Proposition 3.6: the regret and Eq. 9 as more users fall outside, and the cloud of the sharp bound.

    Columns: sweep q, regret, paper, sharp, without; cloud bound, regret, kind.
    """
    fig, (a, b) = panel_grid(2, 2.9, extra=0)
    a.plot(sweep.q, sweep.regret, color=SKY, lw=4, alpha=0.6, label="regret, exact")
    a.plot(sweep.q, sweep.sharp, color=SHARP, ls="--", label="sharp")
    a.plot(sweep.q, sweep.paper, color=PAPER, label="paper, Eq. 9")
    a.plot(sweep.q, sweep.without, color=WRONG, ls=":", label="without ν")
    a.axhline(0, color=CEILING, lw=0.8, ls=":")
    _finish(a, "(a) Gains elsewhere count", r"$q$, users out of its reach", "regret", ylim=(-0.4, 0.85))
    _cloud(b, cloud, "regret", "bound")
    b.axline((0, 0), slope=1, color=SHARP, label="bound = regret")
    _finish(b, "(b) Many deployments", "regret", "sharp bound", ylim=(-0.8, 0.7), xlim=(-0.5, 0.7))
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
    ax.plot(x, 2 * x, color=PAPER, label="paper, 2η̄")
    ax.plot(x, x, color=SHARP, label="sharp, η̄")
    _vacuous(ax, label="vacuous above")
    title, x_label = "The constant is 1, not 2 (one line a process)", "η̄, accumulated distance from the reference P"
    _finish(ax, title, x_label, GAP, ncols=3, ylim=(0, 1.9))
    return fig


def plot_nano_bias(table: pd.DataFrame) -> Figure:
    """Theorem 3.2 and Lemma 3.3 in a nano world, by sharpness of its simulator.

    Columns: policy, gamma, epsilon, deviation, gap (in units of B·R_max), relative, simulator_share.
    """
    fig, (a, b, c) = panel_grid(3, TALL, fill=True)
    name = table.policy.iloc[0]
    one = table[table.policy == name]
    a.plot(one.gamma, 2 * one.epsilon, color=PAPER, label="paper, 2ε̄")
    a.plot(one.gamma, one.deviation, color=SHARP, label="sharp, P(some deviation)")
    a.plot(one.gamma, one.gap, color=CEILING, marker="o", ms=3, label="exact gap")
    _vacuous(a)
    _finish(a, f"(a) The bound holds ({name})", GAMMA, UNITS, log="y")
    for ax, title, column, label in (
        (b, "(b) How far it really moves", "relative", "gap / ‖∇J‖"),
        (c, "(c) A sharp simulator makes little variance", "simulator_share", "simulator's share of Var(R)"),
    ):
        _lines(ax, table, "policy", "gamma", column, (CEILING, PAPER, SHARP), marker="o", ms=3)
        _finish(ax, title, GAMMA, label, ylim=(0, None))
    return fig


def plot_sharpening(curves: pd.DataFrame) -> Figure:
    """Proposition F.1: the tight case and what Verbalized Sampling keeps, a false reading of λ, and γ < 1.

    Columns: case, gamma, curve (exact, paper, sharp, VS keeps, λ = mean of B / m), value.
    """
    fig, axes = panel_grid(3, TALL, extra=0, fill=True)
    panels = (
        ("two_levels", ("paper", "sharp", "VS keeps"), "Sharpening starves B"),
        ("lump", ("paper", "λ = mean of B / m"), "λ is the largest of B"),
        ("long_tail", ("paper",), "γ < 1 feeds it instead"),
    )
    colours = {"paper": PAPER, "sharp": SHARP, "λ = mean of B / m": WRONG, "VS keeps": GREEN}
    for ax, (case, names, text), letter in zip(axes, panels, "abc", strict=True):
        lines = dict(iter(curves[curves.case == case].groupby("curve")))
        ax.plot(
            lines["exact"].gamma, lines["exact"].value, color=CEILING, lw=3, alpha=0.45, label=r"$P_\gamma(B)$, exact"
        )
        for name in names:
            label = r"VS keeps $\rho-\eta$" if name == "VS keeps" else name
            ax.plot(lines[name].gamma, lines[name].value, color=colours[name], ls="--", label=label)
        mass = "" if letter == "b" else "mass of the rare set B"
        _finish(ax, f"({letter}) {text}", "γ", mass, log="" if letter == "c" else "y", ncols=1 + (letter == "c"))
    return fig


def plot_population(sizes: pd.DataFrame, coverage: pd.DataFrame, collapse: pd.DataFrame) -> Figure:
    """Lemmas B.7 and B.9: what divides an exploit's advantage, what a group sees, and how often a pool deviates.

    Columns: sizes pool, K, gap; coverage K, dialogue, group, at_most; collapse K, dialogue, turn.
    """
    fig, (a, b, c) = panel_grid(3, TALL, fill=True)
    _lines(a, sizes, "pool", "K", "gap", (SHARP, AMBER, WRONG, GREEN), marker="o", ms=3)
    _finish(a, "(a) K counts if modes differ", SIZE, "best exploit's advantage / Δ", ylim=(0, 1.05))
    looks = (
        ("at_most", "at most Gq", PAPER),
        ("dialogue", "one drawn a dialogue", SHARP),
        ("group", "one drawn a group", GREEN),
    )
    for column, label, colour in looks:
        b.plot(coverage.K, coverage[column], color=colour, marker="o", ms=3, label=label)
    _finish(b, "(b) A group may see 1/K", SIZE, "P(a group of 8 sees\nwhat one of K does)", ylim=(0, 1.05))
    for column, label, colour in (("turn", "drawn at every turn", PAPER), ("dialogue", "drawn once a dialogue", SHARP)):
        c.plot(collapse.K, collapse[column], color=colour, marker="o", ms=3, label=label)
    _vacuous(c)
    _finish(c, "(c) The first reply tells who speaks", SIZE, "ε̄ over 4 turns", ncols=2, ylim=(0, None))
    for ax in (a, b, c):
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return fig
