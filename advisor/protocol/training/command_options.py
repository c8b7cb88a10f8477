"""Options among the words of a command: where they stand, and which of a group of words are there. Pure functions."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence


def split_variables(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the variables that stand in front of a command as in a shell (`X=1 torchrun …`), and the rest."""
    rest, given = list(words), {}
    while rest and re.match(r"[A-Za-z_]\w*=", rest[0]):
        name, _, value = rest.pop(0).partition("=")
        given[name] = value
    return given, rest


def find_option(command: Sequence[str], option: str) -> tuple[int, str] | None:
    """Return the place of the word that holds an option's value, and what stands before the value in that word.

    `--batch 4`, `--batch=4` and `training.batch=4` are understood; the last one counts, as for most parsers.
    """
    for place in range(len(command) - 1, -1, -1):
        word = command[place]
        if word.startswith(f"{option}="):
            return place, f"{option}="
        if word == option and option.startswith("-") and place + 1 < len(command):
            return place + 1, ""
    return None


def name_place(where: str) -> str:
    """Return what strategies and expressions call what is known by its place: `--batch-size` is batch_size."""
    name = re.sub(r"\W+", "_", where.rsplit(":", 1)[-1].lstrip("-$")).strip("_")
    return name if re.match(r"[A-Za-z_]", name) else f"knob_{name}"


def list_stated(command: Sequence[str]) -> dict[str, str]:
    """Return the options of a command that have a value, by name; the last one counts."""
    stated = {}
    for place, word in enumerate(command):
        option, equals, value = word.partition("=")
        if equals and re.fullmatch(r"-{0,2}[A-Za-z][\w.\-]*", option):
            stated[name_place(option)] = value
        elif word.startswith("-") and place + 1 < len(command) and not command[place + 1].startswith("--"):
            stated[name_place(word)] = command[place + 1]
    return stated


def list_options(groups: Iterable[Sequence[str]]) -> dict[str, int]:
    """Return the options in groups of words, with how many words follow each at most."""
    options: dict[str, int] = {}
    for option, words in (found for group in groups for found in _split(group)):
        if not option.startswith("-"):
            continue
        options[option] = max(options.get(option, 0), len(words) - 1)
    return options


def take_out(command: Sequence[str], options: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """Return a command without these options and the words that follow them, and what was taken out."""
    kept: list[str] = []
    taken: list[str] = []
    left = 0
    for word in command:
        option, equals, _ = word.partition("=")
        if option in options:
            left = 0 if equals else options[option]
            taken.append(word)
        elif left and not word.startswith("--"):
            left -= 1
            taken.append(word)
        else:
            left = 0
            kept.append(word)
    return kept, taken


def has_words(taken: Sequence[str], words: Sequence[str]) -> bool:
    """Whether two groups of words are the same options with the same values, in whatever order."""
    return sorted(words for _, words in _split(taken)) == sorted(words for _, words in _split(words))


def _split(words: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each option with its words, `--a=1` as `--a 1`; words before the first option each by itself."""
    found: list[str] = []
    for word in words:
        if word.startswith("-") and not re.fullmatch(r"-[\d.]+", word):
            if found:
                yield found[0], tuple(found)
            option, equals, value = word.partition("=")
            found = [option, value] if equals else [option]
        elif found:
            found.append(word)
        else:
            yield word, (word,)
    if found:
        yield found[0], tuple(found)
