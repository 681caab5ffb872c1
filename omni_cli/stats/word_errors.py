"""Words that are wrong: the fewest that have to be inserted, deleted and replaced."""

from __future__ import annotations

from collections.abc import Sequence

from omni_cli.records.metrics import DELETIONS, INSERTIONS, SUBSTITUTIONS, WER, WORDS


def count_word_errors(expected: Sequence[str], said: Sequence[str]) -> dict[str, float]:
    """Return the number of expected `words`, and by `WORD_ERRORS` the shares of them that are wrong.

    The errors are the fewest insertions, deletions and substitutions that turn one into the other; of several such
    ways, the one with the most substitutions counts. Without expected words, all words are wrong if there are any.
    """
    count = len(expected)
    if not count:
        wrong = float(bool(said))
        return {WORDS: 0.0, WER: wrong, DELETIONS: 0.0, INSERTIONS: wrong, SUBSTITUTIONS: 0.0}
    row = [(place, 0) for place in range(len(said) + 1)]  # errors, and deletions among them
    for number, word in enumerate(expected, start=1):
        above, row = row, [(number, number)]
        for place, other in enumerate(said, start=1):
            errors, deleted = above[place - 1]
            changed = errors + (word != other), deleted
            left_out = above[place][0] + 1, above[place][1] + 1
            row.append(min(changed, left_out, (row[-1][0] + 1, row[-1][1])))
    errors, deleted = row[-1]
    inserted = deleted + len(said) - count
    shares = {WER: errors, DELETIONS: deleted, INSERTIONS: inserted, SUBSTITUTIONS: errors - deleted - inserted}
    return {WORDS: float(count), **{name: value / count for name, value in shares.items()}}
