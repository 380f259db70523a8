# expect: refused: FSDP models are not supported
# A transformer sharded by fully_shard.
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from benchmarks.gallery_data import vectors
import coadapt.torch as coadapt  #+

torch.manual_seed(0)
job = coadapt.init()  #+
if not torch.distributed.is_initialized():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
model = nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 16, dropout=0.0), 2).double()
mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
for layer in model.layers:
    fully_shard(layer, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model, optimizer = job.prepare(model, optimizer)  #+
