"""Turns a `Config` and a cluster into a `RunPlan`: `resolve.prepare_run` does it, `runfile` describes the result.

* cluster, hosts: the ranks; batch, split, rates: arithmetic of a few keys; kernels: which may compute an op
* rules: what must hold between keys; each rule is a function marked with `@rule` in one of its modules
* assemble: a valid config to the plan; deepspeed: the part of it that is the engine's JSON; origins: where each value
  of it came from
"""
