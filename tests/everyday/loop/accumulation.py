"""Large batches on a small machine: four batches accumulated for each update, bf16, an average of the weights."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

from tests.everyday.datasets import Images
from tolariad import Tolaria

EPOCHS, ACCUMULATED = 4, 4

torch.manual_seed(0)
train_loader = DataLoader(Images(256, seed=1, flip=True), batch_size=8, shuffle=True)
val_data = Images(128, seed=2)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 4))
averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
config = {"rng_seed": 0, "checkpoint_interval_epochs": 1, "accumulate": ACCUMULATED}
run = Tolaria({"tolaria": config}, run_dir="runs/accumulation").run(model, optimizer, train_loader)
run.keep("averaged", averaged)

for epoch in run.epochs(EPOCHS):
    for number, (images, labels) in enumerate(run.batches(), 1):
        with torch.autocast("cpu", torch.bfloat16):
            loss = cross_entropy(model(images), labels)
        run.step(loss)
        if number % ACCUMULATED == 0:
            averaged.update_parameters(model)
    averaged.eval()
    with torch.no_grad():
        accuracy = (averaged(val_data.images).argmax(1) == val_data.labels).float().mean().item()
    run.validated(accuracy=accuracy)
    print(f"epoch {epoch}: accuracy {accuracy:.3f}")

torch.save(model.state_dict(), "model.pt")
torch.save(averaged.state_dict(), "averaged.pt")
