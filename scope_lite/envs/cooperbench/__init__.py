"""CooperBench: two agents build two features in one repository, and git decides whether their work fits together.

    dataset     a dataset folder as pair tasks
    sandbox     one command of foreign code, bounded; what holds it and what does not
    jail        the script that ``sandbox`` starts it with
    workspace   a checkout in a scratch folder, git and commands in it
    testing     one feature's tests on a merged tree, run as the base commit runs tests
    evaluate    merge two patches, test both features, the verdict
    agents      the two seats: a bash tool, messages, handing in

The benchmark's own package is not needed.
"""

from scope_lite.envs.cooperbench.dataset import Feature, PairTask, load_pairs
from scope_lite.envs.cooperbench.evaluate import PairResult, evaluate_pair
from scope_lite.envs.cooperbench.testing import Suite

__all__ = ["Feature", "PairResult", "PairTask", "Suite", "evaluate_pair", "load_pairs"]
