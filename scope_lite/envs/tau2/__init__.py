"""tau2-bench, retail and airline: its scenarios as text, and its tasks as episodes that our own loop drives.

    scenarios     what each simulated user wants, read from the package's data files (the package is not imported)
    environment   the package's environment of one episode: policy, tools, a database of its own
    prompt        the system prompts of the two seats
    tools         tool calls, parsed strictly from what the agent says, and their outputs, bounded
    episode       the state of one episode: who speaks next, what they hear, how it ended
    evaluate      the reward by the package's own evaluators, gold messages, the do-nothing floor, the quarantine list

Only ``environment`` and ``evaluate`` import the package, when they are called; its Orchestrator is not used.
"""

from scope_lite.envs.tau2.scenarios import (
    DOMAINS,
    INSTALL,
    PACKAGE,
    SPLITS,
    Scenario,
    installed_domains,
    load_scenarios,
    spread,
)

__all__ = ["DOMAINS", "INSTALL", "PACKAGE", "SPLITS", "Scenario", "installed_domains", "load_scenarios", "spread"]
