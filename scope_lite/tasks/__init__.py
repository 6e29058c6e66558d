"""Real benchmarks as plain data: tau2-bench user scenarios (``tau2``). Torch and the benchmarks' code stay out."""
