"""A tiny image-text model and its processor, built in code: PIL alone prepares its images."""

import torch
from PIL import Image
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
)

from ..tiny import make_tokenizer


IMAGE_TOKEN = "<image>"
SIDE, PATCH = 16, 8  # an image is four patches
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
    "{% for part in message['content'] %}{{ '<image>' if part['type'] == 'image' else part['text'] }}{% endfor %}"
    "{{ '<|end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def image(shade: int) -> Image.Image:
    return Image.new("RGB", (SIDE, SIDE), (shade, 255 - shade, shade))


def make_processor() -> LlavaProcessor:
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": [IMAGE_TOKEN]})
    return LlavaProcessor(
        image_processor=CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}),
        tokenizer=tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        chat_template=CHAT_TEMPLATE,
        image_token=IMAGE_TOKEN,
        num_additional_image_tokens=1,
    )


def make_model(processor: LlavaProcessor) -> LlavaForConditionalGeneration:
    tokenizer = processor.tokenizer
    torch.manual_seed(0)
    size = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2)
    config = LlavaConfig(
        text_config=LlamaConfig(
            vocab_size=len(tokenizer),
            num_key_value_heads=2,
            initializer_range=0.2,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
            **size,
        ),
        vision_config=CLIPVisionConfig(image_size=SIDE, patch_size=PATCH, projection_dim=16, **size),
        image_token_index=tokenizer.convert_tokens_to_ids(IMAGE_TOKEN),
        vision_feature_layer=-1,
    )
    return LlavaForConditionalGeneration(config)
