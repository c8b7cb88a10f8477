"""A Hugging Face Trainer of a small BERT, as a user writes it."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Sentences(Dataset):
    """Random tokens whose first one decides the label."""

    def __len__(self):
        return 4000

    def __getitem__(self, index):
        words = torch.randint(0, 3000, (48,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "labels": int(words[0] > 1500)}


if __name__ == "__main__":
    torch.manual_seed(0)
    size = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512}
    model = BertForSequenceClassification(BertConfig(vocab_size=3000, **size))
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=8, num_train_epochs=50, logging_steps=50,
        save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    Trainer(model=model, args=arguments, train_dataset=Sentences()).train()
