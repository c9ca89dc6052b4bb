"""From the words of a command line to a config: a TOML file, a checkpoint, or both, and dotted overrides."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rope_jax.experiment.config import ExperimentConfig, load_config, overridden
from rope_jax.experiment.defaults import checkpoint_defaults
from rope_jax.experiment.model import Subject

# What can be given in two words, and the setting that it is.
SHORT = (("--checkpoint", "--model.checkpoint"), ("--text", "--data.source"))


@dataclass(frozen=True, eq=False)
class Request:
    """What a command line asks for.

    Args:
      config: validated.
      subject: its model, where a checkpoint was opened for the config already.
      notes: what is to be said of the settings that nothing was written about.
    """

    config: ExperimentConfig
    subject: Subject | None = None
    notes: tuple[str, ...] = ()


def read_arguments(words: Sequence[str]) -> Request:
    """What the words of a command line ask for.

        CONFIG.toml [--checkpoint DIR] [--text FILE] [--table.key VALUE ...]
        --checkpoint DIR [--text FILE] [--table.key VALUE ...]

    Without a file the settings are those of `checkpoint_defaults`.

    Args:
      words: of the command line.

    Raises:
      ValueError, TypeError, OSError: as `load_config`, and neither a file nor a checkpoint first.
      SystemExit: `--help` (0).
    """
    rest, given = taken(words, [name for name, _ in SHORT])
    checkpoint = given.get("--checkpoint")
    overrides = [word for name, setting in SHORT if name in given for word in (setting, given[name])]
    if rest and not rest[0].startswith("-"):
        return Request(load_config(rest[0], [*overrides, *rest[1:]]))
    if checkpoint is None:
        raise ValueError(
            f"`config` must come first; got {words[0]!r}. Write CONFIG.toml or --checkpoint DIR before the overrides."
        )
    made = checkpoint_defaults(checkpoint)
    config = overridden(made.config, [*overrides, *rest])
    same = config.model.checkpoint == checkpoint
    return Request(
        config,
        replace(made.subject, trained_length=config.train.length) if same else None,
        made.notes if same and config.sweep.methods == made.config.sweep.methods else (),
    )


def taken(words: Sequence[str], names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The words without some options, and those with their values.

    Args:
      words: of the command line.
      names: of the options; each is given at most once, with its value behind it or after a sign of equality.

    Raises:
      ValueError: an option twice, or without a value.
    """
    rest: list[str] = []
    given: dict[str, str] = {}
    ahead = list(words)
    while ahead:
        name, joined, value = ahead.pop(0).partition("=")
        if name not in names:
            rest.append(name + joined + value)
            continue
        if name in given:
            raise ValueError(f"`{name}` must be given once; got it again. Delete one.")
        if not joined and (not ahead or ahead[0].startswith("-")):
            raise ValueError(f"`{name}` must be followed by its value; got {ahead[:1] or 'nothing'}. Write it behind.")
        given[name] = value if joined else ahead.pop(0)
        if not given[name].strip():
            raise ValueError(f"`{name}` must be followed by its value; got an empty one. Is a shell variable unset?")
    return rest, given
