#!/usr/bin/env python3
"""Writes a small language model with random weights as GGUF: the architecture of Llama with 2 layers and 64 dimensions,
and a vocabulary of bytes. It needs the package gguf. usage: llama_model.py FILE [SEED]

Its text has no meaning. Servers of models load it, count its tokens and stream it like any other.
"""
from __future__ import annotations

import sys
from pathlib import Path

import gguf
import numpy

LAYERS, WIDTH, HEADS, HIDDEN, CONTEXT = 2, 64, 4, 128, 256
SPECIAL = ("<unk>", "<s>", "</s>")
TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


def vocabulary() -> tuple[list[bytes], list[float], list[int]]:
    """The tokens with their scores and types: three special ones and all bytes."""
    tokens = [name.encode() for name in SPECIAL] + [f"<0x{byte:02X}>".encode() for byte in range(256)]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL] + [gguf.TokenType.BYTE] * 256
    return tokens, [0.0] * len(tokens), [int(kind) for kind in kinds]


def shapes(tokens: int) -> dict[str, tuple[int, ...]]:
    """The tensors by name, with rows first."""
    out: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (tokens, WIDTH), "output_norm.weight": (WIDTH,), "output.weight": (tokens, WIDTH)}
    for layer in range(LAYERS):
        block = {f"attn_{part}": (WIDTH, WIDTH) for part in ("q", "k", "v", "output")}
        block |= {"ffn_gate": (HIDDEN, WIDTH), "ffn_up": (HIDDEN, WIDTH), "ffn_down": (WIDTH, HIDDEN)}
        out |= {f"blk.{layer}.{name}.weight": shape for name, shape in block.items()}
        out |= {f"blk.{layer}.{name}.weight": (WIDTH,) for name in ("attn_norm", "ffn_norm")}
    return out


def write(file: Path, seed: int = 1) -> None:
    chance = numpy.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_name("random")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    tokens, scores, kinds = vocabulary()
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(kinds)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(TEMPLATE)
    for name, shape in shapes(len(tokens)).items():
        # Norms scale, and all others mix.
        weights = numpy.ones(shape) if len(shape) == 1 else chance.normal(0.0, shape[-1] ** -0.5, shape)
        if name == "output.weight":
            # Printable ASCII has the highest scores, so each token is a character and none ends the text.
            first, last = len(SPECIAL) + 0x20, len(SPECIAL) + 0x7E
            weights[:first], weights[last + 1:] = 0.0, 0.0
            weights[first:last + 1] *= 4.0
        writer.add_tensor(name, weights.astype(numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> int:
    if len(sys.argv) not in (2, 3):
        print("usage: llama_model.py FILE [SEED]", file=sys.stderr)
        return 2
    write(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) == 3 else 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
