"""A `Config` and a cluster to a `RunPlan`: `resolve.prepare_run` is the way in, `runfile` what comes out.

* cluster, hosts: the ranks; batch, split, rates: arithmetic of a few keys; kernels: which may compute an op
* rules: what must hold between keys; a function marked with `@rule` in one of its modules is one
* assemble: a valid config to the plan; deepspeed: the part of it that is the engine's JSON; origins: where each value
  of it came from
"""
