"""What people do with a GPU, as functions that build a thing and return what is to be watched.

Weights and batches are random, and nothing is downloaded. On a machine without a GPU all sizes are small.
"""

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import torch
import transformers
from torch import nn
from torch.nn import functional

Run = Callable[[], object]
Make = Callable[[], Run]

STEPS: Final = 4
ON_GPU: Final = torch.cuda.is_available()
DEVICE: Final = "cuda" if ON_GPU else "cpu"
BF16: Final = torch.bfloat16
WORDS: Final = 32_000 if ON_GPU else 64


def sized(large: int, small: int) -> int:
    """Return a size for this machine."""
    return large if ON_GPU else small


def llama(dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    """Return a Llama of 0.3 billion weights."""
    width = sized(1024, 32)
    config = transformers.LlamaConfig(
        vocab_size=WORDS,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=sized(12, 2),
        num_attention_heads=sized(16, 4),
        num_key_value_heads=sized(4, 2),
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
        **more,
    )
    return transformers.LlamaForCausalLM(config).to(DEVICE, dtype)


def bert() -> Any:
    """Return a BERT of bert-large's width."""
    width = sized(1024, 32)
    config = transformers.BertConfig(
        vocab_size=WORDS,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=sized(12, 2),
        num_attention_heads=sized(16, 4),
    )
    return transformers.BertForSequenceClassification(config).to(DEVICE)


def mixtral() -> Any:
    """Return a mixture of eight experts."""
    width = sized(512, 32)
    config = transformers.MixtralConfig(
        vocab_size=WORDS,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=sized(8, 2),
        num_attention_heads=sized(8, 4),
        num_key_value_heads=sized(4, 2),
    )
    return transformers.MixtralForCausalLM(config).to(DEVICE, BF16)


def vit() -> Any:
    """Return a ViT of the base size."""
    sizes = {} if ON_GPU else {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    return transformers.ViTForImageClassification(transformers.ViTConfig(**sizes)).to(DEVICE)


def resnet() -> Any:
    """Return a ResNet-50, whose convolutions are cuDNN's."""
    sizes = {} if ON_GPU else {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
    config = transformers.ResNetConfig(**sizes)
    return transformers.ResNetForImageClassification(config).to(DEVICE)


def words(rows: int, length: int, *, labels: bool = True) -> dict[str, torch.Tensor]:
    """Return a batch for a language model."""
    ids = torch.randint(3, WORDS, (rows, length), device=DEVICE)
    return {"input_ids": ids, "labels": ids} if labels else {"input_ids": ids}


def classified(rows: int, length: int) -> dict[str, torch.Tensor]:
    """Return a batch for a classifier of texts."""
    return words(rows, length, labels=False) | {"labels": torch.ones(rows, device=DEVICE).long()}


def pictures(rows: int) -> dict[str, torch.Tensor]:
    """Return a batch for a classifier of pictures."""
    return {
        "pixel_values": torch.rand(rows, 3, 224, 224, device=DEVICE),
        "labels": torch.ones(rows, device=DEVICE).long(),
    }


def text_batch() -> dict[str, torch.Tensor]:
    """Return the usual batch for a language model."""
    return words(sized(4, 2), sized(512, 16))


def steps(
    model: Any,
    batch: Mapping[str, torch.Tensor],
    optimizer: Any = None,
    *,
    autocast: torch.dtype | None = None,
    backward: Callable[[Any], object] = lambda loss: loss.backward(),
) -> None:
    """Train as a loop by hand does."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), 1e-4)
    for _ in range(STEPS):
        with torch.autocast(DEVICE, autocast or BF16, enabled=autocast is not None):
            loss = model(**batch).loss
        backward(loss)
        optimizer.step()
        optimizer.zero_grad()


def by_hand(
    make: Callable[[], Any],
    batch: Callable[[], Mapping[str, torch.Tensor]] = text_batch,
    optimizer: Callable[[Any], Any] | None = None,
    autocast: torch.dtype | None = None,
) -> Run:
    """Return a loop by hand."""
    model, given = make().train(), batch()
    made = optimizer(model.parameters()) if optimizer else None
    return lambda: steps(model, given, made, autocast=autocast)


class Rows(torch.utils.data.Dataset[Any]):
    """Sequences of random tokens."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        """Return how many there are."""
        return 4 * STEPS

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        """Return one."""
        ids = torch.randint(3, WORDS, (self.length,), generator=torch.Generator().manual_seed(at))
        return {"input_ids": ids, "labels": ids}


def trainer(
    model: Callable[[], Any] = llama, call: Callable[[Any], object] | None = None, **options: Any
) -> Run:
    """Return a training, or something else, of transformers' Trainer."""
    transformers.logging.set_verbosity_error()
    arguments = transformers.TrainingArguments(
        tempfile.mkdtemp(),
        max_steps=STEPS,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
        logging_strategy="no",
        use_cpu=not ON_GPU,
        **{"per_device_train_batch_size": 4, "prediction_loss_only": True, **options},
    )
    data = Rows(sized(512, 16))
    made = transformers.Trainer(model(), arguments, train_dataset=data, eval_dataset=data)
    return partial(call, made) if call else made.train


def lora() -> Any:
    """Return a Llama with adapters."""
    import peft

    config = peft.LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM")
    return peft.get_peft_model(llama(BF16), config)


def qlora() -> Any:
    """Return a Llama in NF4 with adapters."""
    import bitsandbytes
    import peft

    model = llama(BF16)
    for module in list(model.model.layers.modules()):
        for name, layer in module.named_children():
            if isinstance(layer, nn.Linear):
                given = {"bias": False, "compute_dtype": BF16, "quant_type": "nf4"}
                small = bitsandbytes.nn.Linear4bit(layer.in_features, layer.out_features, **given)
                small.weight = bitsandbytes.nn.Params4bit(
                    layer.weight.data.cpu(), requires_grad=False, quant_type="nf4"
                )
                setattr(module, name, small.to(DEVICE))
    config = peft.LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM")
    return peft.get_peft_model(model, config)


def eight_bit() -> Run:
    """Return a loop with bitsandbytes' Adam."""
    import bitsandbytes

    return by_hand(llama, optimizer=bitsandbytes.optim.AdamW8bit, autocast=BF16)


def compiled() -> Run:
    """Return a loop of a compiled model."""
    model, given = llama(BF16).train(), text_batch()
    model.model = torch.compile(model.model)
    return lambda: steps(model, given)


def graphed() -> Run:
    """Return the replays of a training step that was captured as a CUDA graph."""
    model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(8)]).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, capturable=True)
    given = torch.randn(1024, 2048, device=DEVICE)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(given).square().mean().backward()
        optimizer.step()

    def run() -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        for _ in range(STEPS):
            graph.replay()
        torch.cuda.synchronize()

    return run


def lightning() -> Run:
    """Return a training of Lightning."""
    import lightning as library

    class Module(library.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = llama()

        def training_step(self, batch: Mapping[str, torch.Tensor], _: int) -> torch.Tensor:
            loss: torch.Tensor = self.inner(**batch).loss
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), 1e-4)

    data = torch.utils.data.DataLoader(Rows(sized(512, 16)), batch_size=4)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    fit = library.Trainer(
        max_steps=STEPS,
        precision="bf16-mixed",
        accelerator="gpu" if ON_GPU else "cpu",
        devices=1,
        enable_model_summary=False,
        **quiet,
    ).fit
    return lambda: fit(Module(), data)


def accelerated() -> Run:
    """Return Accelerate's plain loop."""
    import accelerate

    accelerator = accelerate.Accelerator(mixed_precision="bf16", cpu=not ON_GPU)
    model = llama()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 1e-4))
    given = text_batch()
    return lambda: steps(model, given, optimizer, backward=accelerator.backward)


def one_rank(wrap: Callable[[Any], Any]) -> Run:
    """Return a loop of a wrapped model in a group of one process, which has all of its buffers."""
    from torch import distributed

    distributed.init_process_group(
        "nccl" if ON_GPU else "gloo",
        store=distributed.HashStore(),
        rank=0,
        world_size=1,
        device_id=torch.device("cuda", 0) if ON_GPU else None,
    )
    model, given = wrap(llama()), text_batch()
    return lambda: steps(model, given)


def ddp(model: Any, *, views: bool) -> Any:
    """Wrap a model in DDP."""
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model, gradient_as_bucket_view=views)


def fsdp(model: Any) -> Any:
    """Shard a model as FSDP2 does."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(DEVICE, (1,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def of_ranks(wrap: Callable[[Any], Any], autocast: torch.dtype | None = None, **habits: Any) -> Run:
    """Return a loop of a model that this rank shares with others, which torchrun has started."""
    from torch import distributed

    device = torch.device(DEVICE, torch.cuda.current_device()) if ON_GPU else None
    distributed.init_process_group("nccl" if ON_GPU else "gloo", device_id=device)
    model, given = wrap(llama()), text_batch()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, **habits)
    return lambda: steps(model, given, optimizer, autocast=autocast)


def sharded(model: Any) -> Any:
    """Shard a model over all ranks, layer by layer."""
    from torch.distributed.fsdp import fully_shard

    for layer in model.model.layers:
        fully_shard(layer)
    return fully_shard(model)


def divided(model: Any) -> Any:
    """Divide the products of each layer among all ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import parallel

    mesh = init_device_mesh(DEVICE, (torch.distributed.get_world_size(),))
    plan = {
        **{f"self_attn.{name}_proj": parallel.ColwiseParallel() for name in "qkv"},
        **{f"mlp.{name}_proj": parallel.ColwiseParallel() for name in ("gate", "up")},
        "self_attn.o_proj": parallel.RowwiseParallel(),
        "mlp.down_proj": parallel.RowwiseParallel(),
    }
    for layer in model.model.layers:
        parallel.parallelize_module(layer, mesh, plan)
    return model


def loaded_divided(model: Any) -> Any:
    """Load a model as transformers divides it."""
    from torch import distributed

    place = [tempfile.mkdtemp()]
    distributed.broadcast_object_list(place)
    model.save_pretrained(place[0])  # rank 0 does
    distributed.barrier()
    return type(model).from_pretrained(place[0], tp_plan="auto", dtype=torch.float32).train()


def players() -> Run:
    """Return two networks that train against each other."""
    width = sized(2048, 16)
    makes, judges = (
        nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)).to(DEVICE)
        for _ in range(2)
    )
    first, second = (torch.optim.AdamW(one.parameters(), 1e-4) for one in (makes, judges))
    given = torch.randn(1024, width, device=DEVICE)

    def run() -> None:
        for _ in range(STEPS):
            second.zero_grad()
            (judges(makes(given).detach()).mean() - judges(given).mean()).backward()
            second.step()
            first.zero_grad()
            functional.softplus(judges(makes(given))).mean().backward()
            first.step()

    return run


def generation(dtype: torch.dtype = BF16, **options: Any) -> Run:
    """Return `generate`."""
    model = llama(dtype).eval()
    ids = words(sized(8, 2), sized(512, 8), labels=False)
    new = sized(64, 4)
    given = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, **options}
    return lambda: model.generate(**ids, **given)


def pipeline() -> Run:
    """Return a pipeline that writes texts."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    known = {f"w{at}": at for at in range(WORDS)}
    raw = Tokenizer(models.WordLevel(known, unk_token="w3"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, unk_token="w3", pad_token="w0"
    )
    writes = transformers.pipeline(
        "text-generation", llama(BF16), tokenizer=tokenizer, device=0 if ON_GPU else -1
    )
    texts = [" ".join(f"w{3 + at}" for at in range(sized(256, 8)))] * 8
    return lambda: writes(texts, batch_size=4, max_new_tokens=sized(64, 4), do_sample=False)


def forward(make: Callable[[], Any], batch: Callable[[], Mapping[str, torch.Tensor]]) -> Run:
    """Return forward passes without gradients."""
    model, given = make().eval(), batch()

    @torch.inference_mode()
    def run() -> None:
        for _ in range(STEPS):
            model(**given)

    return run


def diffusion() -> Run:
    """Return a pipeline that makes pictures, of Stable Diffusion 1.5's shape on a GPU."""
    import diffusers

    from tests.data import diffusers_tiny

    if not ON_GPU:
        return partial(diffusers_tiny.picture, diffusers_tiny.stable_diffusion())
    with torch.device(DEVICE):
        unet = diffusers.UNet2DConditionModel(cross_attention_dim=768, sample_size=64)
        vae = diffusers.AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            block_out_channels=(128, 256, 512, 512),
            layers_per_block=2,
        )
        text = transformers.CLIPTextModel(
            transformers.CLIPTextConfig(
                vocab_size=64,
                hidden_size=768,
                intermediate_size=3072,
                num_hidden_layers=12,
                num_attention_heads=12,
                bos_token_id=0,
                eos_token_id=2,
                pad_token_id=1,
            )
        )
    made = diffusers.StableDiffusionPipeline(
        vae=vae,
        text_encoder=text,
        tokenizer=diffusers_tiny.words(),
        unet=unet,
        scheduler=diffusers.DDIMScheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    ).to(DEVICE, torch.float16)
    made.set_progress_bar_config(disable=True)
    return lambda: made("a cat", num_inference_steps=10, output_type="np")


TRAINING: Final[Mapping[str, Make]] = {
    "Trainer, fp32": trainer,
    "Trainer, bf16": partial(trainer, bf16=True),
    "Trainer, fp16": partial(trainer, fp16=ON_GPU),
    "Trainer, checkpointing": partial(trainer, gradient_checkpointing=True),
    "Trainer, accumulation": partial(
        trainer, gradient_accumulation_steps=4, per_device_train_batch_size=1
    ),
    "Trainer, Adafactor": partial(trainer, optim="adafactor"),
    "Trainer, torch.compile": partial(trainer, bf16=True, torch_compile=ON_GPU),
    "Trainer, LoRA": partial(trainer, lora, bf16=True),
    "Trainer, QLoRA (NF4)": partial(trainer, qlora, bf16=True),
    "Lightning": lightning,
    "Accelerate": accelerated,
    "plain loop, pure bf16": partial(by_hand, partial(llama, BF16)),
    "plain loop, SGD": partial(
        by_hand, llama, optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    ),
    "plain loop, fused AdamW": partial(
        by_hand, llama, optimizer=partial(torch.optim.AdamW, fused=True), autocast=BF16
    ),
    "plain loop, 8-bit Adam": eight_bit,
    "plain loop, torch.compile": compiled,
    "plain loop, CUDA graph": graphed,
    "BERT": partial(by_hand, bert, lambda: classified(8, sized(512, 16))),
    "Mixtral, 8 experts": partial(by_hand, mixtral),
    "ViT": partial(by_hand, vit, lambda: pictures(sized(32, 2))),
    "ResNet-50": partial(by_hand, resnet, lambda: pictures(sized(64, 2))),
    "two players": players,
    "DDP, one rank": partial(one_rank, partial(ddp, views=False)),
    "DDP with views, one rank": partial(one_rank, partial(ddp, views=True)),
    "FSDP2, one rank": partial(one_rank, fsdp),
}
INFERENCE: Final[Mapping[str, Make]] = {
    "forward passes, bf16": partial(forward, partial(llama, BF16), text_batch),
    "forward passes, ResNet-50": partial(forward, resnet, lambda: pictures(sized(64, 2))),
    "Trainer.evaluate": partial(trainer, call=lambda one: one.evaluate()),
    "generate": generation,
    "generate, fp32": partial(generation, torch.float32),
    "generate, beams": partial(generation, num_beams=4),
    "generate, static cache": partial(generation, cache_implementation="static"),
    "pipeline": pipeline,
    "Stable Diffusion": diffusion,
}
LAYER: Final = {"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}
RANKS: Final[Mapping[str, Make]] = {
    "DDP": partial(of_ranks, partial(ddp, views=False)),
    "DDP with views": partial(of_ranks, partial(ddp, views=True)),
    "DDP with views, autocast": partial(of_ranks, partial(ddp, views=True), BF16),
    "DDP, Trainer, bf16": partial(trainer, bf16=True),
    "FSDP2": partial(of_ranks, sharded),
    "FSDP2, Trainer, bf16": partial(
        trainer, bf16=True, fsdp="full_shard auto_wrap", fsdp_config={"fsdp_version": 2, **LAYER}
    ),
    # Some parameters are divided and some are not, which AdamW cannot update in one call.
    "tensor parallel": partial(of_ranks, divided, foreach=False),
    "tensor parallel, tp_plan": partial(of_ranks, loaded_divided, foreach=False),
}
"""Trainings of which each process of torchrun does its part."""

WORKLOADS: Final[Mapping[str, Make]] = {**TRAINING, **INFERENCE, **RANKS}
