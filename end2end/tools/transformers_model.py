#!/usr/bin/env python3
"""Writes a language model with random weights for Hugging Face's libraries: the architecture of Llama, and a vocabulary of
bytes. It needs torch and transformers. usage: transformers_model.py DIRECTORY [LAYERS WIDTH]

Its text has no meaning. Servers of models load it, count its tokens and stream it like any other.
"""
from __future__ import annotations

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

HEAD_WIDTH, CONTEXT, SEED = 64, 1_024, 1
SPECIAL = ("<s>", "</s>", "<pad>")
TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


def tokenizer() -> PreTrainedTokenizerFast:
    """A token for each byte, and three special ones."""
    tokens = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    inner = Tokenizer(models.BPE({token: place for place, token in enumerate(tokens)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    made.chat_template = TEMPLATE
    return made


def write(directory: str, layers: int, width: int) -> None:
    torch.manual_seed(SEED)
    words = tokenizer()
    # No token ends a text, so each answer has all tokens that were asked for.
    config = LlamaConfig(
        vocab_size=len(words), hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers,
        num_attention_heads=width // HEAD_WIDTH, num_key_value_heads=width // HEAD_WIDTH,
        max_position_embeddings=CONTEXT, bos_token_id=0, eos_token_id=None, pad_token_id=2)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(directory)
    words.save_pretrained(directory)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 4):
        sys.exit(__doc__)
    write(sys.argv[1], *(int(number) for number in sys.argv[2:] or ("12", "768")))
