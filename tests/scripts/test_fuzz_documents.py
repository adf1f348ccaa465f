"""The fuzzer of documents, for some seconds."""

from __future__ import annotations

import random
from typing import get_args

import pytest
from fuzz_documents import check, find_growth, mutate

from transformer_mt.choices import DocumentFormat


@pytest.mark.parametrize("document_format", get_args(DocumentFormat))
def test_mutated_documents_are_refused_or_keep_their_elements(document_format: DocumentFormat) -> None:
    for text in mutate(document_format, 40, random.Random(2)):
        assert check(text, document_format) == "", text


@pytest.mark.slow
@pytest.mark.parametrize("document_format", get_args(DocumentFormat))
def test_the_time_is_proportional_to_the_length(document_format: DocumentFormat) -> None:
    assert find_growth(document_format, 100) == []
