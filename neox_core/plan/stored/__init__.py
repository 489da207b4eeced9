"""What is stored of a plan: reading it from a run's folder or a checkpoint, and comparing it when a run resumes.

* saved: the folders and files of a run; earlier: their older forms; installed: a stored plan with today's components
* sizes: those of a stored model against its weights
* schedule, changed, resume: what a run that resumes has to keep
"""
