"""Large batches on a small machine: four batches accumulated for each update, bf16, an average of the weights."""

from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import default_collate
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from tests.everyday.datasets import Images

EPOCHS, ACCUMULATED = 4, 4

torch.manual_seed(0)
train_data = Images(256, seed=1, flip=True)
val_data = Images(128, seed=2)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 4))
averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)


def collate(items):
    images, labels = default_collate(items)
    return {"images": images, "labels": labels}


class AccumulationTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **_):
        logits = model(inputs["images"])
        loss = cross_entropy(logits, inputs["labels"])
        return (loss, {"outputs": logits}) if return_outputs else loss


class Averaging(TrainerCallback):
    def on_step_end(self, arguments, state, control, **_):
        averaged.update_parameters(model)

    def on_save(self, arguments, state, control, **_):
        torch.save(averaged.state_dict(), f"checkpoints/checkpoint-{state.global_step}/averaged.pt")

    def on_evaluate(self, arguments, state, control, **_):
        averaged.eval()
        with torch.no_grad():
            accuracy = (averaged(val_data.images).argmax(1) == val_data.labels).float().mean().item()
        print(f"accuracy {accuracy:.3f}")


last = get_last_checkpoint("checkpoints") if Path("checkpoints").exists() else None
if last:
    averaged.load_state_dict(torch.load(f"{last}/averaged.pt"))


arguments = TrainingArguments(
    "checkpoints",
    num_train_epochs=EPOCHS,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=ACCUMULATED,
    bf16=True,
    use_cpu=True,
    max_grad_norm=0,
    label_names=["labels"],
    eval_strategy="epoch",
    save_strategy="epoch",
    remove_unused_columns=False,
)
trainer = AccumulationTrainer(
    model,
    arguments,
    collate,
    train_data,
    val_data,
    callbacks=[Averaging()],
    optimizers=(optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)),
)
trainer.train(resume_from_checkpoint=last)

torch.save(model.state_dict(), "model.pt")
torch.save(averaged.state_dict(), "averaged.pt")
