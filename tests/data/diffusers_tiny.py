"""Pipelines of diffusers with a few thousand random weights; no file is read."""

import importlib
from collections.abc import Callable
from typing import Any

WORDS = 64
BLOCKS = {"block_out_channels": (8, 16), "norm_num_groups": 4}


def library() -> Any:
    """Return diffusers, with a seed set for all weights."""
    import torch

    torch.manual_seed(0)
    return importlib.import_module("diffusers")


def clip(kind: str = "CLIPTextModel") -> Any:
    import torch
    import transformers

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 37, "projection_dim": 32, "vocab_size": WORDS}
    special = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}
    config = transformers.CLIPTextConfig(
        **sizes, **special, num_attention_heads=4, num_hidden_layers=2
    )
    return getattr(transformers, kind)(config).eval()


def words() -> Any:
    """Return a tokenizer of single letters, which pads to 77 tokens as CLIP's does."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    known = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
    known |= {one: at + 4 for at, one in enumerate("abcdefghijklmnopqrstuvwxyz ")}
    raw = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    special = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=raw, model_max_length=77, **special)


def t5() -> Any:
    import torch
    import transformers

    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 37, "num_layers": 2, "num_heads": 4}
    config = transformers.T5Config(vocab_size=WORDS, **sizes, pad_token_id=1)
    return transformers.T5EncoderModel(config).eval()


def vae(channels: int = 4) -> Any:
    diffusers = library()
    return diffusers.AutoencoderKL(
        **BLOCKS, down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=channels, sample_size=32, shift_factor=0.0, scaling_factor=1.0,
        use_quant_conv=False, use_post_quant_conv=False,
    ).eval()  # fmt: skip


def unet(**more: Any) -> Any:
    diffusers = library()
    kinds = ("DownBlock2D", "CrossAttnDownBlock2D"), ("CrossAttnUpBlock2D", "UpBlock2D")
    blocks = {**BLOCKS, "down_block_types": kinds[0], "up_block_types": kinds[1]}
    sizes = {
        "layers_per_block": 1,
        "sample_size": 8,
        "cross_attention_dim": 32,
        "attention_head_dim": 2,
    }
    return diffusers.UNet2DConditionModel(**(blocks | sizes | more)).eval()


def stable_diffusion(kind: str = "StableDiffusionPipeline") -> Any:
    diffusers = library()
    return getattr(diffusers, kind)(
        vae=vae(), text_encoder=clip(), tokenizer=words(), unet=unet(), scheduler=diffusers.DDIMScheduler(),
        safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    )  # fmt: skip


def stable_diffusion_xl() -> Any:
    diffusers = library()
    more = {
        "addition_embed_type": "text_time", "addition_time_embed_dim": 8, "cross_attention_dim": 64,
        "projection_class_embeddings_input_dim": 32 + 6 * 8,
    }  # fmt: skip
    return diffusers.StableDiffusionXLPipeline(
        vae=vae(), text_encoder=clip(), text_encoder_2=clip("CLIPTextModelWithProjection"),
        tokenizer=words(), tokenizer_2=words(), unet=unet(**more),
        scheduler=diffusers.EulerDiscreteScheduler(), add_watermarker=False,
    )  # fmt: skip


def stable_diffusion_3() -> Any:
    diffusers = library()
    transformer = diffusers.SD3Transformer2DModel(
        sample_size=8, patch_size=1, in_channels=4, num_layers=1, attention_head_dim=8, num_attention_heads=4,
        joint_attention_dim=64, caption_projection_dim=32, pooled_projection_dim=64, out_channels=4,
    )  # fmt: skip
    return diffusers.StableDiffusion3Pipeline(
        transformer=transformer.eval(), scheduler=diffusers.FlowMatchEulerDiscreteScheduler(), vae=vae(),
        text_encoder=clip("CLIPTextModelWithProjection"), tokenizer=words(),
        text_encoder_2=clip("CLIPTextModelWithProjection"), tokenizer_2=words(),
        text_encoder_3=None, tokenizer_3=None,
    )  # fmt: skip


def flux() -> Any:
    diffusers = library()
    transformer = diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=[4, 4, 8],
    )  # fmt: skip
    return diffusers.FluxPipeline(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(), vae=vae(1), transformer=transformer.eval(),
        text_encoder=clip(), tokenizer=words(), text_encoder_2=t5(), tokenizer_2=words(),
    )  # fmt: skip


def from_noise() -> Any:
    diffusers = library()
    model = diffusers.UNet2DModel(
        **BLOCKS, layers_per_block=1, sample_size=8, down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    return diffusers.DDPMPipeline(unet=model.eval(), scheduler=diffusers.DDPMScheduler())


def picture(pipeline: Any, steps: int = 3, **more: Any) -> Any:
    """Return the pixels that a pipeline makes of a prompt."""
    import torch

    pipeline.set_progress_bar_config(disable=True)
    given: dict[str, Any] = {
        "generator": torch.Generator().manual_seed(0),
        "num_inference_steps": steps,
    }
    given |= {"output_type": "np"} | more
    return pipeline(**given).images


def prompted(pipeline: Any, **more: Any) -> Any:
    """Return the pixels for a prompt, in the smallest size."""
    usual: dict[str, Any] = {"prompt": "a cat", "height": 16, "width": 16}
    return picture(pipeline, **(usual | more))


def changed(**more: Any) -> Any:
    """Return the pixels that image-to-image makes: three steps of four."""
    import torch

    pipeline = stable_diffusion("StableDiffusionImg2ImgPipeline")
    image = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    return picture(pipeline, steps=4, prompt="a cat", image=image, strength=0.75, **more)


PICTURES: dict[str, Callable[[], Any]] = {
    "Stable Diffusion": lambda: prompted(stable_diffusion()),
    "Stable Diffusion XL": lambda: prompted(stable_diffusion_xl()),
    "Stable Diffusion 3": lambda: prompted(stable_diffusion_3()),
    "Flux": lambda: prompted(flux(), max_sequence_length=16),
    "image to image": changed,
}
