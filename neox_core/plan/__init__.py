"""Turns a `Config` and a cluster into a `RunPlan`: `resolve.prepare_run` does it, `runfile` reads and writes it.

* component: a component that a plan names; plans: the classes of a plan; source: the keys of each of their fields
* cluster, hosts: the ranks; batch, split, lr_schedule: arithmetic of a few keys
* rules: what must hold between keys; each rule is a function marked with `@rule` in one of its modules
* assemble, planners: a valid config to the plan; exports: what it can be exported as; start: what stands in its way
* stored: a plan that was stored
"""
