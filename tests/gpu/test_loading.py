"""Loading a checkpoint onto a real GPU: its shards are spans, and its weights are counted there."""

from tests.gpu.conftest import Run


def test_a_sharded_checkpoint_is_followed_onto_the_gpu(run_python: Run) -> None:
    """Every shard is a span, the weights rise with them, and the model is the one that was saved."""
    labels, rising, held, truth, same = run_python(
        """
import tempfile, torch, hfmem_widget
from hfmem_widget.drivers import install as attaching
attaching.attach()
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
torch.manual_seed(0)
config = LlamaConfig(hidden_size=1024, num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=4,
                     intermediate_size=2816, vocab_size=32000)
saved = LlamaForCausalLM(config).bfloat16()
folder = tempfile.mkdtemp()
saved.save_pretrained(folder, max_shard_size="60MB")
torch.ones(1, device="cuda")
with hfmem_widget.watch("load", quiet=True, interval=0.02) as session:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, device_map="cuda:0")
shards = [span for span in session.spans if span.kind == "shard"]
rising = [session.value(span.after, "cuda:0/weights") for span in shards]
truth = sum({p.untyped_storage().data_ptr(): p.untyped_storage().nbytes()
             for p in model.parameters()}.values())
same = all(torch.equal(a.cpu(), b) for a, b in zip(model.parameters(), saved.parameters(), strict=True))
report([[span.label for span in shards], rising, session.latest("cuda:0/weights"), truth, same])
"""
    )

    count = len(labels)
    assert count > 2
    assert labels == [f"shard {number} of {count}" for number in range(1, count + 1)]
    assert rising == sorted(rising)
    assert held == truth
    assert same
