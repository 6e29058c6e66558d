"""What stands for a run: end, area under the curve and best checkpoint, by hand."""

import numpy as np
import pandas as pd
import pytest

from scope_lite.experiments.summaries import auc, summarise


def test_auc_is_the_mean_height_of_the_curve():
    assert auc(np.array([0.0, 5.0, 10.0]), np.array([0.0, 1.0, 0.0])) == pytest.approx(0.5)


def test_auc_leaves_out_steps_without_a_value():
    assert auc(np.array([0.0, 5.0, 10.0]), np.array([np.nan, 1.0, 3.0])) == pytest.approx(2.0)
    assert np.isnan(auc(np.array([0.0]), np.array([np.nan])))


def test_summary_reads_end_auc_and_best_off_one_checkpoint():
    table = pd.DataFrame({"seed": 0, "step": [0, 5, 10], "unseen": [0.1, 0.6, 0.2], "real": [0.3, 0.2, 0.1]})
    summary = summarise(table, ["seed"], ["unseen", "real"], select="unseen").set_index("summary")
    assert summary.loc["end", "unseen"] == 0.2
    assert summary.loc["best", "real"] == 0.2 and summary.loc["best", "at_step"] == 5
    assert summary.loc["auc", "unseen"] == pytest.approx(0.375)
