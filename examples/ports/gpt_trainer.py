"""A small GPT learns to add in words, letter by letter: it is asked "two plus three", and answers "five".

    python examples/ports/gpt_trainer.py         # again, to go on where it was interrupted

Only the letters of the answers count, and answers have different lengths. Each step adds up the gradients of
several small batches, so that it takes little memory; every letter of the step counts the same.
"""

import argparse
import itertools
import math
import os
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=400, help="how long to train (400)")
parser.add_argument("--out", default="gpt.pt", help="where the training state is saved, and read again")
args = parser.parse_args()

torch.manual_seed(0)

MICRO_BATCH, MICRO_BATCHES, WARM_UP, SAVE_EVERY = 8, 4, 20, 10
WORDS = "zero one two three four five six seven eight nine ten eleven twelve"
NUMBERS = WORDS.split()
SUMS = [
    (f"{NUMBERS[a]} {plus} {NUMBERS[b]}:", f" {NUMBERS[a + b]}\n")
    for a, b in itertools.product(range(7), repeat=2)
    for plus in ("and", "plus")
]
LETTERS = sorted(set("".join(question + answer for question, answer in SUMS)))
LONGEST = max(len(question + answer) for question, answer in SUMS)
IGNORED = -1


def encode(text: str) -> Tensor:
    return torch.tensor([LETTERS.index(letter) for letter in text])


def example(question: str, answer: str) -> tuple[Tensor, Tensor]:
    """The letters, and what is to be guessed after each of them."""
    letters = encode(question + answer)
    following = letters[1:].clone()
    following[: len(question) - 1] = IGNORED
    return letters[:-1], following


def collate(examples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    letters, following = zip(*examples, strict=True)
    return pad_sequence(letters, batch_first=True), pad_sequence(following, True, IGNORED)


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop = nn.Dropout(0.05)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(seen.transpose(1, 2).flatten(-2)))
        return x + self.drop(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    def __init__(self, width: int = 64, heads: int = 4, blocks: int = 2) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(len(LETTERS), width), nn.Embedding(LONGEST, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)), nn.LayerNorm(width))
        self.head = nn.Linear(width, len(LETTERS), bias=False)
        self.head.weight = self.letters.weight  # tied: one parameter in two places
        nn.init.normal_(self.letters.weight, std=0.05)

    def forward(self, letters: Tensor) -> Tensor:
        places = torch.arange(letters.shape[1])
        logits: Tensor = self.head(self.blocks(self.letters(letters) + self.places(places)))
        return logits


def rate(step: int) -> float:
    """Up to 1 in a straight line, and down to 0 along a cosine."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    return 0.5 + 0.5 * math.cos(math.pi * (step - WARM_UP) / max(1, args.steps - WARM_UP))


@torch.no_grad()
def answer(question: str) -> str:
    model.eval()
    line = encode(question)
    while len(line) < LONGEST and LETTERS[line[-1]] != "\n":
        line = torch.cat([line, model(line[None])[0, -1].argmax()[None]])
    model.train()
    return "".join(LETTERS[letter] for letter in line).removeprefix(question).strip()


model = GPT()
opt = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01)
schedule = torch.optim.lr_scheduler.LambdaLR(opt, rate)
examples = [example(*each) for each in SUMS]
data = torch.utils.data.DataLoader(examples, batch_size=MICRO_BATCH, shuffle=True, collate_fn=collate)
batches = (batch for _ in itertools.count() for batch in data)  # pass after pass, without end
done = 0

if Path(args.out).exists():
    saved = torch.load(args.out)
    model.load_state_dict(saved["model"])
    opt.load_state_dict(saved["opt"])
    schedule.load_state_dict(saved["schedule"])
    torch.set_rng_state(saved["rng"])
    done = saved["done"]
    print(f"going on after step {done}")

while done < args.steps:
    micro_batches = [next(batches) for _ in range(MICRO_BATCHES)]
    tokens = sum((following != IGNORED).sum() for _, following in micro_batches)
    step_loss = 0.0
    for letters, following in micro_batches:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(letters)
        losses = F.cross_entropy(
            logits.float().flatten(0, 1), following.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        loss = losses / tokens
        loss.backward()
        step_loss += loss.item()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    opt.zero_grad()
    schedule.step()
    done += 1
    if done % 20 == 0:
        print(f"step {done}: loss {step_loss:.4f}")
    if done % SAVE_EVERY == 0 or done == args.steps:
        state = {"model": model.state_dict(), "opt": opt.state_dict(), "schedule": schedule.state_dict()}
        torch.save({**state, "rng": torch.get_rng_state(), "done": done}, f"{args.out}.new")
        os.replace(f"{args.out}.new", args.out)

right = sum(answer(question) == said.strip() for question, said in SUMS)
print(f"two plus three: {answer('two plus three:')}; {right} of {len(SUMS)} sums are right")
