"""tau2-bench, retail and airline: its scenarios as text, and its tasks as episodes that our own loop drives.

    scenarios   what each simulated user wants, read from the package's data files (the package is not imported)
    prompt      the system prompts of the two seats
    tools       tool calls, parsed strictly from what the agent says, and their outputs, bounded
    episode     the state of one episode: who speaks next, what they hear, how it ended
    benchmark   the package's tasks, environments and evaluators, behind such an episode

Only ``benchmark`` imports the package, when it is called; its Orchestrator is not used.
"""

from scope_lite.envs.tau2.scenarios import DOMAINS, PACKAGE, Scenario, load_scenarios, spread

__all__ = ["DOMAINS", "PACKAGE", "Scenario", "load_scenarios", "spread"]
