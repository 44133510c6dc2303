"""Code that the GPU tests run with us and without us."""

MODEL = """
import torch
from transformers import BertConfig, BertForSequenceClassification

def make_model(layers=6):
    torch.manual_seed(0)
    config = BertConfig(hidden_size=1024, num_hidden_layers=layers, num_attention_heads=16,
                        intermediate_size=4096)
    return BertForSequenceClassification(config).cuda()

def batch_of(tokens, size=4):
    generator = torch.Generator().manual_seed(tokens)
    ids = torch.randint(1000, 30000, (size, tokens), generator=generator).cuda()
    return {"input_ids": ids, "labels": torch.zeros(size, dtype=torch.long, device="cuda")}

def step(model, optimizer, tokens, size=4):
    model(**batch_of(tokens, size)).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

TRAIN = """
for tokens in (64, 384, 128, 511, 200, 96):
    step(model, optimizer, tokens)
torch.cuda.synchronize()
"""

SETUP = (
    MODEL
    + """
model = make_model()
optimizer = torch.optim.AdamW(model.parameters())
step(model, optimizer, 32)
"""
)

QUIET_CHECK = """
import os
import pynvml
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)

def device_used():
    return pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).used

def child_can_use_cuda():
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            import torch
            os.write(writing, str(float(torch.ones(4, device="cuda").sum())).encode())
        except BaseException as error:
            os.write(writing, repr(error)[:200].encode())
        finally:
            os._exit(0)
    os.close(writing)
    answer = os.read(reading, 1000).decode()
    os.waitpid(pid, 0)
    return answer
"""
