"""A small GPT learns to spell and to add, letter by letter, from sentences that this script makes up.

    python examples/chargpt.py                   # one process
    outlast run -n 4 examples/chargpt.py         # four: the same bits, whatever happens to them

Sentences have different lengths, so shards have different numbers of letters. Each loss is a mean over its
letters, and says how many (`weight=`), so that every letter of a step counts the same.
"""

import argparse
import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

import outlast

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=500, help="how long to train (500)")
options = parser.parse_args()

torch.set_num_threads(1)  # as many as `outlast run` gives to each replica, so that the bits can be compared
outlast.seed(0)

WORDS = "zero one two three four five six seven eight nine ten eleven twelve"
NUMBERS = WORDS.split()
SENTENCES = [
    f"{NUMBERS[a]} {word} {NUMBERS[b]} {verb} {NUMBERS[a + b]}."
    for a, b in itertools.product(range(7), repeat=2)
    for word, verb in (("and", "are"), ("plus", "is"))
]
LETTERS = ["\n", *sorted(set("".join(SENTENCES)))]  # a line begins and ends with the first
LONGEST = max(map(len, SENTENCES)) + 1
PADDING = -1


def encode(text: str) -> Tensor:
    return torch.tensor([LETTERS.index(letter) for letter in text])


def collate(lines: list[Tensor]) -> tuple[Tensor, Tensor]:
    padded = pad_sequence(lines, batch_first=True, padding_value=PADDING)
    return padded[:, :-1].clamp(min=0), padded[:, 1:]  # each letter, and the one to be guessed after it


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norm2(x))


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

    @torch.no_grad()
    def complete(self, text: str) -> str:
        line = encode("\n" + text)
        while len(line) < LONGEST:
            guess = self(line[None])[0, -1].argmax()
            if guess == 0:
                break
            line = torch.cat([line, guess[None]])
        return "".join(LETTERS[letter] for letter in line[1:])


model = GPT()
opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, max(options.steps, 1))
lines = [encode(f"\n{sentence}\n") for sentence in SENTENCES]
data = outlast.Data(lines, global_batch=32, seed=0, collate_fn=collate)

with outlast.join(model=model, optimizer=opt, data=data, state={"schedule": schedule}, shards=4) as job:
    for step in job.steps(options.steps):
        for letters, following in step:
            loss = F.cross_entropy(model(letters).flatten(0, 1), following.flatten(), ignore_index=PADDING)
            step.backward(loss, weight=(following != PADDING).sum().item())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        schedule.step()
        if job.chief and step.number % 50 == 0:
            print(f"step {step.number}: loss {step.loss:.4f}", flush=True)

    if job.chief:
        with job.aside():  # work that the others do not take part in: it is no hang if it takes long
            for start in ("two plus three", "four and one", "five plus six", "six and six", "o"):
                print(f"{start}… {model.complete(start)}", flush=True)
        print(f"weights and optimizer: {outlast.state_digest(model, opt)[:16]}", flush=True)
