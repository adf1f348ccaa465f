"""Export to ONNX: encoder, one step of the decoder, tokenizers, metadata and a translation script.

DIR/
  encoder.onnx  decoder.onnx                 read by ONNX Runtime
  config.json                                what a program needs to run them: sizes, and ids of control symbols
  src_tokenizer.json  tgt_tokenizer.json     read by the tokenizers library
  export.json                                source run, decoding settings and parity check
  translate.py and its modules               translate text; need only onnxruntime, tokenizers and numpy

PyTorch traces the modules of the training, so any variant of the model can be exported.

`n` decoder layers, `B` sentences or beams, `S` source length, `P` target tokens so far, `G` key/value heads, `E` head
width, `V` vocabulary.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from transformer_mt.data.tokenizers.tokenizer import BOS, EOS, PAD, Tokenizer
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.interface import Hypothesis
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.model.attention import KeysValues, MultiHeadAttention, padding_mask
from transformer_mt.model.positions import PositionTable
from transformer_mt.model.transformer import DecoderLayer, Transformer
from transformer_mt.system import files
from transformer_mt.tools.export import onnx_script, web_export
from transformer_mt.tools.export.ctranslate2_engine import find_length_limits, find_unsupported_search_keys
from transformer_mt.tools.export.exported_folder import check_parity, describe_parity, write_metadata, write_texts

OPSET = 18
QUANTIZATIONS = ("float32", "int8")
SCRIPT = Path(__file__).with_name("onnx_script.py")
script = cast(Any, onnx_script)  # it has no types


Inputs = dict[str, tuple[Tensor, dict[int, torch.export.Dim]]]
"""An example of each input of a graph, and its dynamic axes."""


# --- graphs -----------------------------------------------------------------------------------------------------------


class EncoderGraph(nn.Module):
    """The encoder with the projections of its states to keys and values of cross-attention."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, src: Tensor) -> Tensor:
        """Encode padded sources. [B, S] -> [n, 2, B, G, S, E]."""
        states, _ = self.model.encode(src)
        layers = cast("list[DecoderLayer]", self.model.decoder.layers)
        return torch.stack([torch.stack(layer.cross_attention.project_keys_values(states)) for layer in layers])


class DecoderGraph(nn.Module):
    """One step of the decoder, whose cache holds keys and values of self-attention."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, src: Tensor, memory: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        """Feed one token per row. Return the logits of the next one, and the cache extended by this token.

        [B, 1], [B, S], [n, 2, B, G, S, E], [n, 2, B, G, P, E] -> [B, V], [n, 2, B, G, P + 1, E]
        """
        decoder, position = self.model.decoder, cache.size(4)
        positions = slice(position, position + 1)
        x, rotation = decoder.embed(tokens, positions), decoder.make_rotation(positions, 1)
        mask, extended = padding_mask(src, self.model.src_pad), list[Tensor]()

        def attend_to_self(attention: MultiHeadAttention, past: Tensor, h: Tensor) -> Tensor:
            queries, new = attention.project(h, rotation)
            extended.append(torch.cat([past, torch.stack(new)], dim=3))
            return attention(queries, KeysValues(*extended[-1].unbind()), None)

        def attend_to_source(attention: MultiHeadAttention, keys_values: Tensor, h: Tensor) -> Tensor:
            return attention(attention.project_queries(h), KeysValues(*keys_values.unbind()), mask)

        for layer, past, keys_values in zip(cast("list[DecoderLayer]", decoder.layers), cache, memory, strict=True):
            self_residual, cross_residual, feed_forward_residual = layer.residuals
            x = self_residual(x, partial(attend_to_self, layer.self_attention, past))
            x = cross_residual(x, partial(attend_to_source, layer.cross_attention, keys_values))
            x = feed_forward_residual(x, layer.feed_forward)
        return self.model.logits(decoder.norm(x))[:, 0], torch.stack(extended)


# --- folder -----------------------------------------------------------------------------------------------------------


def check_settings(config: DecodingConfig, quantization: str) -> None:
    """Raise `UserError` for settings of the search that the script lacks, and for an unknown quantization."""
    if quantization not in QUANTIZATIONS:
        raise UserError(f"--quantization {quantization}: ONNX Runtime has {', '.join(QUANTIZATIONS)}")
    for key, _ in find_unsupported_search_keys(config):
        value, default = getattr(config, key), json.dumps(type(config).model_fields[key].default).strip('"')
        raise UserError(f"decoding.{key}: {value}: translate.py of an ONNX model lacks it; set {default}")


def write_folder(
    translator: Translator, output: Path, quantization: str, texts: Sequence[str], web_libraries: Mapping[str, Path]
) -> list[str]:
    """Write the folder atomically, compare its translations of `texts` with ours, and return the lines to print.

    `translator` holds one model in fp32 on the CPU. With `web_libraries`, the folder gets a web page.
    """
    with files.atomic_new_folder(output) as folder:
        save_model(translator, quantization, folder)
        parity = check_parity(translator, OnnxEngine(folder, quantization), texts)
        write_texts(folder, translator, SCRIPT)
        write_metadata(folder, translator, ["onnx", "onnxscript"], quantization, parity)
        if web_libraries:
            web_export.write_page(folder, translator, web_libraries)
    return describe_parity(parity, quantization)


def save_model(translator: Translator, quantization: str, folder: Path) -> None:
    """Write both graphs, and the configuration that programs need to run them."""
    model, tokenizers = translator.model, translator.tokenizers
    n_positions, _ = find_length_limits(model.config, translator.config, tokenizers)
    for table in model.modules():
        if isinstance(table, PositionTable):
            table.get(n_positions)  # the table is a constant of the graph
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns that torchvision is missing
    for name, graph, inputs, outputs in _list_graphs(model, n_positions):
        path = folder / f"{name}.onnx"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns of its own exporter
            program = torch.onnx.export(
                graph,
                tuple(example for example, _ in inputs.values()),
                input_names=[*inputs],
                output_names=outputs,
                dynamic_shapes=tuple(axes for _, axes in inputs.values()),
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
        assert program is not None
        program.save(path)
        if quantization == "int8":
            _quantize(path)
    config = {
        "opset": OPSET,
        **dict(zip(("n_layers", "n_kv_heads", "d_head"), _cache_sizes(model), strict=True)),
        "n_positions": n_positions,
        "source_start": [tokenizers.src.bos_id] if tokenizers.source_bos else [],
        "source_end": [tokenizers.src.eos_id] if tokenizers.source_eos else [],
        "src_ids": _list_controls(tokenizers.src),
        "tgt_ids": _list_controls(tokenizers.tgt),
    }
    files.write_text(folder / "config.json", json.dumps(config, ensure_ascii=False, indent=1) + "\n")


def _list_graphs(model: Transformer, n_positions: int) -> Iterator[tuple[str, nn.Module, Inputs, list[str]]]:
    """Yield name, module, inputs and outputs of each graph."""
    n_layers, n_kv_heads, d_head = _cache_sizes(model)
    rows = torch.export.Dim("batch")
    source, past = torch.export.Dim("source", max=n_positions), torch.export.Dim("past", max=n_positions - 1)

    def make_cache(length: int) -> Tensor:
        return torch.zeros(n_layers, 2, 3, n_kv_heads, length, d_head)

    src = torch.zeros(3, 5, dtype=torch.long), {0: rows, 1: source}
    tokens = torch.zeros(3, 1, dtype=torch.long), {0: rows}
    memory, cache = (make_cache(5), {2: rows, 4: source}), (make_cache(4), {2: rows, 4: past})
    yield "encoder", EncoderGraph(model).eval(), {"src": src}, ["memory"]
    inputs = {"tokens": tokens, "src": src, "memory": memory, "cache": cache}
    yield "decoder", DecoderGraph(model).eval(), inputs, ["logits", "extended_cache"]


def _cache_sizes(model: Transformer) -> tuple[int, int, int]:
    """Return the number of decoder layers, of key/value heads, and the width of a head."""
    config = model.config.for_stack(model.config.decoder)
    return len(model.decoder.layers), config.kv_heads, config.d_head


def _list_controls(tokenizer: Tokenizer) -> dict[str, int]:
    return {symbol: i for i, symbol in enumerate(tokenizer.control_symbols(), start=tokenizer.pad_id)}


def _quantize(path: Path) -> None:
    """Quantise the weights of matrix products to 8 bits. Their inputs are quantised when the model runs."""
    from onnxruntime.quantization import QuantType, quantize_dynamic  # pyright: ignore[reportUnknownVariableType]
    from onnxruntime.quantization.shape_inference import quant_pre_process  # pyright: ignore[reportUnknownVariableType]

    with TemporaryDirectory(dir=path.parent) as folder:
        folded = Path(folder) / path.name  # weights as constants instead of results of operations
        quant_pre_process(path, folded, skip_symbolic_shape=True)
        quantize_dynamic(folded, path, weight_type=QuantType.QInt8)


# --- engine -----------------------------------------------------------------------------------------------------------


class OnnxEngine:
    """The model in a folder, searched as its `translate.py` does it."""

    def __init__(self, folder: Path, precision: str) -> None:
        """Load both graphs."""
        self.model, self.precision = script.Model(folder), precision

    def search(
        self, sources: list[list[int]], config: DecodingConfig, *, tgt_tags: Sequence[int] | None, scores: bool = False
    ) -> list[list[Hypothesis]]:
        """Translate source ids one by one. There are no scores."""
        found: list[list[Hypothesis]] = []
        for i, ids in enumerate(sources):
            tag = [tgt_tags[i]] if tgt_tags else []
            limit = min(config.max_target_tokens(len(ids)) + bool(tgt_tags), self.model.config["n_positions"])
            ((best, is_finished),) = script.search(self.model, [ids], limit, tag, config.model_dump())
            found.append([Hypothesis(best, [], is_finished)])
        return found

    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the log-probability of each token of given translations, including EOS."""
        src, memory, cache = self.model.encode(sources)
        bos, eos, pad = (self.model.tgt_ids[symbol] for symbol in (BOS, EOS, PAD))
        longest = max(map(len, targets))
        labels = np.array([[*ids, eos, *[pad] * (longest - len(ids))] for ids in targets])  # [B, T]
        tokens, found = np.full(len(labels), bos), list[NDArray[np.float32]]()
        for column in labels.T:
            log_probs, cache = self.model.step(tokens, src, memory, cache)
            found.append(log_probs[np.arange(len(column)), column])
            tokens = column
        return [row[: len(ids) + 1].tolist() for row, ids in zip(np.stack(found, axis=1), targets, strict=True)]
