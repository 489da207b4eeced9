"""Keys of GPT-NeoX that profile steps of a run, as the block `profile`, at ea7aefd."""

from __future__ import annotations

from neox_gpt_neox.translate import SAYS_NOTHING, Rewriting

SWITCHES = ("profile", "memory_profiling")
STEPS = {"profile_step_start": 10, "profile_step_stop": 12}
"""Key -> its default. GPT-NeoX counts steps from 0, and its torch.profiler records those before the stop."""
PATH = "memory_profiling_path"


def translate_profile(work: Rewriting) -> None:
    """Read the steps to profile as `profile.first` and `profile.last`; take out what asks for nothing."""
    found = {key: work.value(key) for key in (*SWITCHES, *STEPS, PATH) if key in work.values}
    if isinstance(found.get("profile"), dict):
        del found["profile"]
    for key in [key for key in SWITCHES if key in found]:
        if not isinstance(found[key], bool | None):
            work.drop(key, "must be true or false, or a block", "profile: {first: 10, last: 12}", severity="error")
            return
    start, stop = (found.get(key, default) for key, default in STEPS.items())
    asked = next((key for key in SWITCHES if found.get(key)), None)
    place = None if asked is None else work.places[asked]
    wrong = [key for key in STEPS if key in found and (type(found[key]) is not int or found[key] < 0)]
    for key in wrong:
        work.drop(key, f"must be a step, counted from 0, not {found[key]!r}", severity="error")
    if wrong:
        return
    first, last, steps = start + 1, max(stop, start + 1), work.value("train_iters")
    ends = type(steps) is int and first > steps
    said = f"is read as profile: {{first: {first}, last: {last}}}"
    if ends:
        said = f"{SAYS_NOTHING}: the run ends before step {first}"
    for key in found:
        if asked is None:
            work.drop(key, f"{SAYS_NOTHING}: it asks for no profile")
        elif key == PATH:
            work.drop(key, f"{SAYS_NOTHING}: the folder of the run has the profiles")
        else:
            work.drop(key, said)
    if place is not None and not ends:
        work.write("profile.first", first, place)
        work.write("profile.last", min(last, steps) if type(steps) is int else last, place)
        work.taken.discard("profile.first")
        work.taken.discard("profile.last")
