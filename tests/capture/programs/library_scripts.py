"""Training scripts as users of libraries write them; the first argument is the batch size."""

from __future__ import annotations

ACCELERATE_LOOP = """
import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator()
rows = TensorDataset(torch.rand(256, 3, 16, 16), torch.randint(10, (256,)))
convolution = nn.Conv2d(3, 8, 3)
model = nn.Sequential(convolution, nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(1568, 10))
optimizer = torch.optim.AdamW(model.parameters())
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
loader = DataLoader(rows, int(sys.argv[1]))
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
for _ in range(2):
    for images, classes in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), classes)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
"""

TRANSFORMERS_TRAINER = """
import sys

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Sentences(torch.utils.data.Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        words = torch.arange(24) * (index + 1) % 100
        mask = torch.ones(24, dtype=torch.long)
        return {"input_ids": words, "attention_mask": mask, "labels": index % 5}


config = BertConfig(
    vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
    intermediate_size=64, num_labels=5, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)
options = TrainingArguments(
    "out", per_device_train_batch_size=int(sys.argv[1]), max_steps=20, report_to=[],
    save_strategy="no", logging_strategy="no", gradient_accumulation_steps=2,
)
Trainer(BertForSequenceClassification(config), options, train_dataset=Sentences()).train()
"""

LIGHTNING_LOOP = """
import sys

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Autoencoder(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 784))

    def training_step(self, batch, index):
        (images,) = batch
        loss = nn.functional.mse_loss(self.decoder(self.encoder(images)), images)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


images = DataLoader(TensorDataset(torch.rand(256, 784)), batch_size=int(sys.argv[1]))
trainer = lightning.Trainer(
    max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False
)
trainer.fit(Autoencoder(), images)
"""

PEFT_LORA = """
import sys

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

device = "cuda" if torch.cuda.is_available() else "cpu"
config = GPT2Config(vocab_size=100, n_positions=32, n_embd=32, n_layer=2, n_head=2)
lora = LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn"], fan_in_fan_out=True)
model = get_peft_model(GPT2LMHeadModel(config), lora).to(device)
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-3)
model.eval()
for words in DataLoader(torch.randint(100, (256, 32)), batch_size=int(sys.argv[1])):
    words = words.to(device)
    loss = model(input_ids=words, labels=words).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

DIFFUSERS_UNET = """
import sys

import torch
from diffusers import DDPMScheduler, UNet2DModel
from torch.utils.data import DataLoader

device = "cuda" if torch.cuda.is_available() else "cpu"
model = UNet2DModel(
    sample_size=16, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(32, 64),
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"), norm_num_groups=8,
).to(device)
noise_scheduler = DDPMScheduler(num_train_timesteps=1000)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for images in DataLoader(torch.rand(64, 3, 16, 16), batch_size=int(sys.argv[1])):
    images = images.to(device)
    noise = torch.randn(images.shape, device=device)
    times = torch.randint(0, 1000, (images.shape[0],), device=device)
    noisy = noise_scheduler.add_noise(images, noise, times)
    loss = torch.nn.functional.mse_loss(model(noisy, times, return_dict=False)[0], noise)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
"""

GEOMETRIC_GCN = """
import sys

import torch
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool

device = "cuda" if torch.cuda.is_available() else "cpu"
graphs = [
    Data(x=torch.rand(10, 16), edge_index=torch.randint(10, (2, 40)), y=torch.tensor([i % 3]))
    for i in range(128)
]


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = GCNConv(16, 32), GCNConv(32, 32)
        self.out = torch.nn.Linear(32, 3)

    def forward(self, data):
        hidden = self.first(data.x, data.edge_index).relu()
        hidden = self.second(hidden, data.edge_index).relu()
        return self.out(global_mean_pool(hidden, data.batch))


model = Classifier().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for data in DataLoader(graphs, batch_size=int(sys.argv[1])):
    data = data.to(device)
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(data), data.y)
    loss.backward()
    optimizer.step()
"""

SEGMENTATION_UNET = """
import sys

import segmentation_models_pytorch as smp
import torch
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
rows = TensorDataset(torch.rand(64, 3, 64, 64), torch.randint(2, (64, 1, 64, 64)).float())
model = smp.Unet("resnet18", encoder_weights=None, in_channels=3, classes=1).to(device)
loss_function = smp.losses.DiceLoss(smp.losses.BINARY_MODE, from_logits=True)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
for images, masks in DataLoader(rows, batch_size=int(sys.argv[1])):
    optimizer.zero_grad()
    loss = loss_function(model(images.to(device)), masks.to(device))
    loss.backward()
    optimizer.step()
"""

SCRIPTS = {
    "accelerate": ACCELERATE_LOOP,
    "transformers": TRANSFORMERS_TRAINER,
    "lightning": LIGHTNING_LOOP,
    "peft": PEFT_LORA,
    "diffusers": DIFFUSERS_UNET,
    "torch_geometric": GEOMETRIC_GCN,
    "segmentation_models_pytorch": SEGMENTATION_UNET,
}
"""Scripts by the package that they need."""
