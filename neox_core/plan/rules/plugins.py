"""The rules of plugins: which plugins' rules are called, and how a failing rule is reported."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from attrs import evolve

from neox_core.config.problem import MisfitError, Problem
from neox_core.config.schema.sections.host import PluginsSection
from neox_core.config.schema.structure import Config, SectionInvalidError
from neox_core.errors import PluginError, about_a_file
from neox_core.hooks.blame import cause_of, show_traceback
from neox_core.hooks.catalog import Catalog
from neox_core.hooks.guard import in_time
from neox_core.hooks.registry import normalise
from neox_core.plan.runfile import KernelPlan

RULES_S = 20.0  # the limit of all rules of a plugin, which look at a config and do no work


def plugin_rules(
    hook: str, config: Config, catalog: Catalog, kernels: Iterable[KernelPlan] = (), **about: Any
) -> Iterator[Problem]:
    """What the rules of the plugins in use find. about: what the hook takes beside the config.

    Called once every section is valid. A rule that raises, or does not return a list of problems, is an error.
    """
    used = used_plugins(config, catalog, kernels)
    for name, ask in rules_of_plugins(catalog, hook):
        if name not in used:
            continue
        try:
            with in_time(f"plugin {name}", RULES_S, "say what its rules find", hint=f"tell the author of {name}"):
                said = ask(config=config.seen_by(name), **about)
        # it read values that do not fit together, which the core has reported
        except (SectionInvalidError, MisfitError):
            continue
        except (Exception, SystemExit) as error:  # noqa: BLE001 a plugin may raise anything
            show_traceback(error)
            yield fault_of_rules(name, error, catalog)
        else:
            for each in said:
                placed = config.problem(each.message, each.key, each.hint, each.severity)
                yield evolve(placed, exit_code=each.exit_code)


def rules_of_plugins(catalog: Catalog, hook: str) -> Iterator[tuple[str, Callable[..., list[Problem]]]]:
    """(id of a plugin, its rules of a hook), in the order of the ids; calling them may raise anything."""
    plugins = catalog.manager.get_plugins()
    for plugin in sorted(plugins, key=lambda each: str(catalog.manager.get_name(each))):
        caller = catalog.manager.subset_hook_caller(hook, [each for each in plugins if each is not plugin])
        if any(impl.plugin is plugin for impl in caller.get_hookimpls()):
            yield str(catalog.manager.get_name(plugin)).partition("/")[0], partial(_ask, caller)


def _ask(hook: Any, **about: Any) -> list[Problem]:
    answers = hook(**about)
    if not answers:  # pluggy drops None
        raise TypeError(f"{hook.name} returned None; it returns a list of problems, [] where all is well")
    said = [problem for problems in answers for problem in problems]
    for each in said:
        texts = isinstance(each, Problem) and (each.message, each.key, each.hint)
        if not texts or not all(isinstance(text, str) for text in texts):
            raise TypeError(f"{hook.name} returned {each!r} in place of a Problem")
    return said


def fault_of_rules(name: str, error: BaseException, catalog: Catalog) -> Problem:
    """The problem that the rules of a plugin raised an exception: their own fault, or that of what they look at."""
    told = error if isinstance(error, PluginError) else about_a_file(error)
    if told is not None:
        return Problem(told.message, hint=told.hint, exit_code=told.exit_code)
    report = catalog.report(name)
    cause = cause_of(error, report.plugin.module if report else "")
    hint = f"tell the author of {name}; NEOX_PLUGINS_DISABLE={name} switches it off"
    return Problem(f"the rules of plugin {name} failed: {cause}", hint=hint, exit_code=PluginError.exit_code)


def used_plugins(config: Config, catalog: Catalog, kernels: Iterable[KernelPlan] = ()) -> set[str]:
    """The plugins that a run uses, by id.

    Those of a chosen component, of a kernel that may be taken, or of a key that is written; those that
    `plugins.require` names; and those that offer nothing but rules, such as the rules of a site.
    """
    used = {*config.in_use, *(offer.plugin for each in kernels for offer in each.offers)}
    used |= {normalise(name) for name in config.section(PluginsSection).plugins.require}
    offering = {entry.plugin.id for entry in catalog.registry.entries()}
    offering |= {plugin.id for plugin, _ in catalog.registry.sections}
    offering |= {plugin.id for plugin in catalog.registry.definers.values()}
    return used | {report.plugin.id for report in catalog.reports if report.plugin.id not in offering}
