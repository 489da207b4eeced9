"""`neox completion`: the script with which a shell completes commands and options, as click writes it."""

import click
from click.shell_completion import get_completion_class

from neox_core.errors import UsageError
from neox_core.terminal import Own, echo

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes commands and options of neox in SHELL, those of plugins too.

    bash: `eval "$(neox completion bash)"` in ~/.bashrc. zsh: the same with zsh in ~/.zshrc. fish:
    `neox completion fish > ~/.config/fish/completions/neox.fish`.
    """
    root = click.get_current_context().find_root().command
    maker = get_completion_class(shell)
    if maker is None:
        raise UsageError(f"click has no completion for {shell}", hint=f"one of {', '.join(SHELLS)}")
    made = maker(root, {}, "neox", "_NEOX_COMPLETE")
    echo(Own(made.source_template % made.source_vars()))  # `source` would start bash to ask for its version
