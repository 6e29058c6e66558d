"""The paper's claims C1 to C8 as data, and the verdict on each from the shipped tables (C7 is ours).

A contrast is one number a seed: a variant at the end of training minus another one of the same
seed (or minus its own best checkpoint). The mean over seeds, with its 95 % t-interval, is held
against the contrast's rule, with a margin of 0.05 (points of reward, or nats of entropy):

    above         holds: interval above 0; fails: below 0; "no difference": within the margin of 0
    at or above   holds: interval above -margin; fails: below -margin
    below, at or below   the same, mirrored
    same          holds: interval within the margin of 0; fails: wholly outside

Whatever is none of these is "undecided", and so is every contrast at one seed. A claim holds in a
setting if all of its contrasts hold there, and fails if one fails; a contrast of ``context`` is
reported and does not count. In the multiverse each random world has one run of each method: a
contrast holds in a world if it lies on the claimed side by more than the margin ("at or": not on
the other side by more than it), and what is reported is the share of worlds, with its exact
interval; the verdict there is "holds" if that interval lies above one half, "fails" if below.
"""

from scope_lite.experiments.claims.data import CLAIMS, ENSEMBLE, LACKED, RELATED, SETTINGS, Claim, Contrast
from scope_lite.experiments.claims.sentences import fill_page, sentences
from scope_lite.experiments.claims.verdicts import COLUMNS, evaluate, overall, read_claims, verdict, write_claims

__all__ = [
    "CLAIMS",
    "COLUMNS",
    "ENSEMBLE",
    "LACKED",
    "RELATED",
    "SETTINGS",
    "Claim",
    "Contrast",
    "evaluate",
    "fill_page",
    "overall",
    "read_claims",
    "sentences",
    "verdict",
    "write_claims",
]
