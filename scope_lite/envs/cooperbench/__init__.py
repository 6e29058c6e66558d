"""CooperBench: two agents build two features in one repository, and git decides whether their work fits together.

    dataset     a dataset folder as pair tasks
    episode     the two seats: messages, commands, patches
    testing     merge two patches, run both features' tests as the base commit runs tests, the verdict
    workspace   a checkout in a scratch folder, git and commands in it
    sandbox     one command of foreign code in bubblewrap, bounded; what holds it and what does not

The benchmark's own package is not needed.
"""

from scope_lite.envs.cooperbench.dataset import Feature, PairTask, load_pairs, load_split
from scope_lite.envs.cooperbench.testing import PairResult, Suite, evaluate_pair

__all__ = ["Feature", "PairResult", "PairTask", "Suite", "evaluate_pair", "load_pairs", "load_split"]
