"""What is stored of a plan: reading it from a run's folder, a checkpoint or a store.

* saved: the folders and files of a run; earlier: their older forms; installed: a stored plan with today's components
* stores: the checkpoint that a run starts from, also in a store; schedule: what a run keeps of its learning rate
* state: its progress, and state.json of a checkpoint
"""
