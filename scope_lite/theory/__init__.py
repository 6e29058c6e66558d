"""The paper's theory on dialogues small enough to enumerate: stated, proved (in notebook 01), and checked exactly.

Read in this order: ``process`` (the dialogue, J and its gradient), ``quantities`` (ε̄, TV, B, variance splits),
``inequality`` (how a statement is checked and broken), ``instances`` (tight cases, counterexamples); then one file per
group of results: ``gradients`` (Thm 3.2, Props 3.7, B.8), ``variance`` (Lem 3.3), ``concentration`` and ``dynamics``
(Prop 3.4, Cor 3.5, Rem B.10), ``regret`` (Prop 3.6), ``leads`` (Lem B.5, Cor B.6: false as stated), ``sharpening``
(Props B.2, F.1), ``population`` (Lems B.7, B.9). ``results`` lists all. What real runs do: ``experiments.exploits``.
"""
