"""Translation and scoring on a CUDA device: as on the CPU, with few waits of the host."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_helpers import CPU, CUDA, count_launches, fake_device_only, list_waits
from torch import Tensor

from transformer_mt.data.sources import load_pairs
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.engine import TorchEngine, prepare_for_inference
from transformer_mt.decoding.hooks import TranslatorHooks
from transformer_mt.decoding.interface import Hypothesis
from transformer_mt.decoding.search import GPU_SYNC_INTERVAL
from transformer_mt.decoding.translator import Translator
from transformer_mt.model.cuda_graphs import CudaCapture, GraphModel
from transformer_mt.model.inference import InferenceModel
from transformer_mt.model.transformer import Transformer
from transformer_mt.tools.markup.stages import GlossaryStage, make_stages, read_glossary

TEXTS = [src for src, _ in load_pairs("test")[:6]]
WITH_ELEMENTS = [f"<b>{text}</b> {{name}}" if i % 2 else text for i, text in enumerate(TEXTS)]
FEW_TOKENS = {"batch_tokens": 100}  # several batches
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"beam": 1},
    "beam": {"beam": 4, "n_best": 3, **FEW_TOKENS},
    "length penalty": {"beam": 4, "length_penalty_exponent": 0.6, "min_length": 7},
    "sampling": {"sample": True, "n_best": 2, "seed": 3},
    "filtered sampling": {"sample": True, "top_k": 20, "top_p": 0.7, "temperature": 0.8},
}
TERMS = {"the": "Xaver", "old": "uralt", "dog": "Köter|Hund", "a": "irgendein"}


@pytest.fixture(scope="module")
def make_translators(
    make_model: Callable[..., Transformer], small_tokenizers: TokenizerPair
) -> Callable[..., tuple[Translator, Translator]]:
    """`make_translators(**decoding)`: a translator on the CPU, and the same on the GPU."""
    tokenizers = small_tokenizers
    src, tgt = tokenizers.src, tokenizers.tgt
    sizes = {"vocab": (src.vocab_size, tgt.vocab_size), "pad": (src.pad_id, tgt.pad_id), "rough": 0.2}

    def make_translators(n_models: int = 1, **decoding: Any) -> tuple[Translator, Translator]:
        options = {"max_length_factor": 1, "max_length_offset": 2, **decoding}
        models = [make_model(d_model=32 * (i + 1), **sizes) for i in range(n_models)]
        copies = [copy.deepcopy(model).to(CUDA) for model in models]
        config = DecodingConfig.model_validate(options)
        on_cpu, on_gpu = (
            Translator(
                TorchEngine(each, tokenizers), tokenizers, config, hooks=TranslatorHooks(make_stages=make_stages)
            )
            for each in (models, copies)
        )
        return on_cpu, on_gpu

    return make_translators


def assert_same_translations(translators: Sequence[Translator], texts: Sequence[str], **options: Any) -> None:
    """Assert that two translators have the same translations, with nearly the same scores."""
    expected, found = (translator.n_best(texts, **options) for translator in translators)
    for one, other in zip(found, expected, strict=True):
        assert [each.text for each in one] == [each.text for each in other]
        assert [each.score for each in one] == pytest.approx([each.score for each in other], abs=1e-3)
    assert len({n_best[0].text for n_best in found}) > len(texts) // 2


FAST = {"beam", "filtered sampling"}
NAMES = [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in SEARCHES]


@pytest.mark.parametrize("name", NAMES)
def test_translations_are_those_of_the_cpu(name: str, make_translators) -> None:
    assert_same_translations(make_translators(**SEARCHES[name]), TEXTS)


@pytest.mark.parametrize("options", [{"beam": 4, "n_best": 2}, {"sample": True}], ids=["beam", "sampling"])
def test_translations_with_elements_are_those_of_the_cpu(options: dict[str, Any], make_translators) -> None:
    translators = make_translators(markup="auto", **options)
    assert_same_translations(translators, WITH_ELEMENTS)


@pytest.mark.parametrize("has_elements", [pytest.param(False, marks=pytest.mark.slow), True], ids=["plain", "elements"])
def test_translations_with_terms_are_those_of_the_cpu(has_elements: bool, make_translators, tmp_path: Path) -> None:
    glossary = tmp_path / "terms.tsv"
    glossary.write_text("".join(f"{term}\t{forms}\n" for term, forms in TERMS.items()), encoding="utf-8")
    markup = {"markup": "auto"} if has_elements else {}
    translators = make_translators(beam=4, glossary=str(glossary), **markup)
    assert_same_translations(translators, WITH_ELEMENTS if has_elements else TEXTS)


@pytest.mark.slow
def test_translations_of_an_ensemble_are_those_of_the_cpu(make_translators) -> None:
    assert_same_translations(make_translators(n_models=2, beam=3), TEXTS)


def test_scores_and_alignments_are_those_of_the_cpu(make_translators) -> None:
    targets = [tgt for _, tgt in load_pairs("test")[:6]]
    translators = make_translators()
    expected, found = ([each.score for each in translator.score(TEXTS, targets)] for translator in translators)
    assert found == pytest.approx(expected, abs=1e-3)
    assert min(found) > -math.inf
    expected, found = (
        [each[0].alignment for each in translator.n_best(TEXTS, alignments=True)] for translator in translators
    )
    assert found == expected


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"norm_position": "post", "positions": "learned"},
        {"positions": "rotary", "n_kv_heads": 1, "norm": "rmsnorm", "activation": "swiglu"},
    ],
    ids=["default", "post-norm", "rotary"],
)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_decoder_steps_in_half_precision_are_near_those_of_the_cpu(
    precision: Any, settings: dict[str, Any], make_model
) -> None:
    model = prepare_for_inference(make_model(d_model=32, **settings), precision)
    src, tokens = torch.randint(1, 23, (3, 7)), torch.randint(1, 23, (3, 4, 5))

    def run(device: torch.device) -> Tensor:
        decoder = InferenceModel(copy.deepcopy(model).to(device))
        cache = decoder.start(src.to(device))
        states = [decoder.step(tokens[..., i].to(device), cache) for i in range(tokens.size(2))]
        return decoder.logits(states[-1])[..., 1:].cpu()

    with torch.inference_mode():
        torch.testing.assert_close(run(CUDA), run(CPU), atol=0.05, rtol=0.05)


# --- waits ------------------------------------------------------------------------------------------------------------


def count_waits_of_search(translator: Translator, n_positions: int, **parts: Any) -> int:
    """Return the number of waits of a search in which no translation ends before `n_positions`.

    The search runs a second time, because the first one captures CUDA graphs.
    """
    limits = {"min_length": n_positions, "max_length_factor": 0, "max_length_offset": n_positions}
    sources = translator.tokenizers.src.encode(TEXTS[:4])
    found: list[list[Hypothesis]] = []
    config = translator.config.with_options(limits)
    translator.torch_engine.search(sources, config, **parts)
    waits = list_waits(lambda: found.extend(translator.torch_engine.search(sources, config, **parts)))
    assert all(len(each.ids) >= n_positions for n_best in found for each in n_best)
    return len(waits)


def count_waits_per_check(translator: Translator, **parts: Any) -> float:
    """Return the waits between two checks for finished sentences."""
    few, many = (count_waits_of_search(translator, n * GPU_SYNC_INTERVAL, **parts) for n in (2, 4))
    return (many - few) / 2


@pytest.mark.parametrize("name", NAMES)
def test_a_search_waits_only_to_find_finished_sentences(name: str, make_translators) -> None:
    """One wait for their number, and one for a copy at the end."""
    _, translator = make_translators(**SEARCHES[name])
    assert count_waits_per_check(translator) == 1
    assert count_waits_of_search(translator, GPU_SYNC_INTERVAL) < 20


def test_a_search_with_terms_waits_twice_per_position(make_translators, tmp_path: Path) -> None:
    """The automata on the CPU need the tokens and parents of the candidates, and later those of the beams."""
    glossary = tmp_path / "terms.tsv"
    glossary.write_text("the\tXaver\n", encoding="utf-8")
    _, translator = make_translators(beam=4)
    stage = GlossaryStage(read_glossary(str(glossary)), translator.tokenizers.tgt)
    automata = [stage.make_automaton("the", 100, 1) for _ in TEXTS[:4]]
    assert all(automata)
    assert count_waits_per_check(translator, constraints=automata) == 2 * GPU_SYNC_INTERVAL + 1


@fake_device_only
def test_a_graph_submits_the_kernels_of_a_step_at_once(make_translators) -> None:
    """The layers of the decoder cost one launch, so deeper models launch no more kernels."""
    _, translator = make_translators(beam=4)
    model = InferenceModel(translator.model)
    graphs = GraphModel(model, 1 << 30, CudaCapture(CUDA))
    tokens = torch.full((2, 1), 5, device=CUDA)
    with torch.inference_mode():
        cache, graph_cache = model.start(tokens), graphs.start(tokens)
        steps = [lambda: model.step(tokens, cache), lambda: graphs.step(tokens, graph_cache)]
        for step in steps * 2:
            step()
        eager, replayed = map(count_launches, steps)
    assert 10 * replayed < eager
