"""What neox-resume offers."""

from typing import Any

from neox_core.api import Problem, hookimpl


@hookimpl
def neox_check_plan(config: Any, plan: Any) -> list[Problem]:
    from neox_resume.resume import resume_problems  # listing plugins needs none of it

    return list(resume_problems(config, plan))
