"""Sentences for people are in the words of the field: phrases that we gave up do not come back."""

import re

import pytest

from .sentences import list_all_sentences

GIVEN_UP = {
    r"taking turns": "interleaved A/B rounds",
    r"is expected of it|is put at|is put above": "predicted, best so far",
    r"earns? (its|their) place": "still helps",
    r"no strategy mends": "No knob mends that",
    r"ended as (finished|PLACE)": "is done",
    r"starting work on the device": "host overhead",
    r"rungs? above the allowed": "riskier settings",
    r"nobody vouches|vouches for": "not confirmed as applied",
    r"losses that the program tells": "losses that the program reports",
    r"no look errs": "familywise error",
    r"come along": "bundled examples",
}


@pytest.mark.parametrize("phrase", GIVEN_UP)
def test_no_sentence_holds_a_phrase_that_was_given_up(phrase: str) -> None:
    found = [
        f"{where}: {sentence}"
        for where, sentence in list_all_sentences()
        if re.search(phrase, " ".join(sentence.split()))
    ]
    assert not found, f"say: {GIVEN_UP[phrase]}"


def test_catalogue_holds_the_sentences_that_people_see() -> None:
    sentences = [sentence for _, sentence in list_all_sentences()]
    assert len(sentences) > 5000
    assert "All keep the mathematics exact." in sentences
    assert any("No knob mends that" in sentence for sentence in sentences)
