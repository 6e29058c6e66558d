"""How collapsed a simulator is, and how sure that is: from one reply distribution to a simulator beside people.

Read ``samples`` (epsilon = 1 - max probability, Def. 3.1, for known distributions, its estimates from samples, and what
counts as the same reply), then ``stats`` (which interval when, and its words). ``replies`` says how varied replies are
by history; ``production`` draws the replies of a large setting. ``human_baseline`` holds them against people;
``diagnostics`` holds a simulator's replies in short dialogues, which ``scripted`` plays, against thresholds. What is
not here: the metrics of a training run (``method``) and what stands for a run in a comparison
(``experiments.summaries``).
"""
