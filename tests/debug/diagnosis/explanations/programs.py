"""Programs that fail, each with the words that a good explanation and its fix hold."""

from __future__ import annotations

HEAD = """
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
torch.manual_seed(0)
"""
# name -> (program, words of the explanation or its fix, line of the edit after HEAD or None)
PROGRAMS: dict[str, tuple[str, list[str]]] = {
    "a_sample_that_is_too_short": (
        """
class Logs(Dataset):
    def __init__(self):
        self.names = [f"run{i}.csv" for i in range(8)]
    def __len__(self):
        return 8
    def __getitem__(self, i):
        row = torch.ones(2 if i == 5 else 9)
        return row[:9] if len(row) >= 9 else None if i > 99 else self.short(row)
    def short(self, row):
        if row.sum() < 3:
            return None
        return row

for batch in DataLoader(Logs(), batch_size=3):
    pass
""",
        ["for sample 5", "`names[5]` is 'run5.csv'", "`short`", "collate_fn"],
    ),
    "a_file_that_cannot_be_read": (
        """
class Frames(Dataset):
    def __init__(self, folder):
        self.paths = [str(folder / f"{i}.npy") for i in range(4)]
        for i, path in enumerate(self.paths):
            np.save(path, np.ones(3)) if i != 2 else open(path, "w").close()
    def __len__(self):
        return 4
    def __getitem__(self, i):
        try:
            return np.load(self.paths[i])
        except (OSError, EOFError, ValueError):
            return None

from pathlib import Path
next(iter(DataLoader(torch.utils.data.Subset(Frames(Path.cwd()), [0, 2]), batch_size=2)))
""",
        ["for sample 2", "2.npy', a file of 0 bytes", "`except` for (OSError, EOFError, ValueError)", "np.load"],
    ),
    "a_bare_state_dict": (
        """
net = nn.Sequential(nn.Linear(2, 2))
torch.save({"weights": net.state_dict()}, "last.pt")
torch.save(net.state_dict(), "best.pt")
saved = torch.load("best.pt")
net.load_state_dict(saved["weights"])
""",
        ["itself a state dict", 'torch.save(net.state_dict(), "best.pt")', "`load_state_dict(saved)`"],
    ),
    "a_parameter_of_a_checkpoint": (
        """
saved = {"model": nn.Linear(2, 2).state_dict(), "step": 1}
print(saved["head.weight"])
""",
        ["a whole checkpoint", 'saved["model"]["head.weight"]'],
    ),
    "labels_of_a_part": (
        """
class Birds(Dataset):
    def __init__(self):
        self.songs, self.kinds = torch.rand(30, 4), torch.randint(0, 3, (30,))
    def __len__(self):
        return 30
    def __getitem__(self, i):
        return self.songs[i], self.kinds[i]

learn, _ = torch.utils.data.random_split(Birds(), [20, 10])
inner, _ = torch.utils.data.random_split(learn, [15, 5])
torch.bincount(inner.kinds)
""",
        [
            "random_split(learn, [15, 5])",
            "inner.dataset.dataset.kinds[[inner.dataset.indices[i] for i in inner.indices]]",
        ],
    ),
    "a_single_image": (
        """
net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4 * 3 * 3, 2))
stars = torch.rand(6, 1, 8, 8)
net(stars)
net(stars[2])
""",
        ["`stars[2]`", "(1, 8, 8) without a batch axis", "net(stars[2].unsqueeze(0))", "`stars[2:3]`"],
    ),
    "columns_of_two_parts": (
        """
import pandas as pd
fish = pd.DataFrame({"size": [1.0, 2.0, 3.0, 4.0], "sea": ["north", "east", "south", "east"]})
def encode(part):
    return torch.tensor(pd.get_dummies(part, columns=["sea"], dtype=float).to_numpy()).float()

known, new = encode(fish.iloc[:3]), encode(fish.iloc[3:])
net = nn.Sequential(nn.Linear(known.shape[1], 3), nn.Linear(3, 1))
net(known), net(new)
""",
        ["`known` comes from `encode(fish.iloc[:3])`", "pd.get_dummies(", "each different value", "before it is split"],
    ),
    "both_directions_by_settings": (
        """
class Reader(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.memory = nn.GRU(3, 5, **options)
        self.norm, self.head = nn.LayerNorm(10), nn.Linear(5, 2)
    def forward(self, x):
        states, _ = self.memory(x)
        best = self.norm(states.amax(1))
        return self.head(best)

Reader({"batch_first": True, "bidirectional": True})(torch.rand(2, 4, 3))
""",
        ["10 = 2 x 5", "`memory` (`GRU(3, 5", "in_features=10"],
    ),
    "a_last_batch_of_one": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.maps, self.head = nn.Conv2d(1, 4, 3), nn.Linear(4, 3)
    def forward(self, x):
        return self.head(F.adaptive_avg_pool2d(self.maps(x), 1).squeeze())

net, loader = Net(), DataLoader(TensorDataset(torch.rand(9, 1, 8, 8), torch.arange(9) % 3), batch_size=4)
for x, y in loader:
    loss = F.cross_entropy(net(x), y)
    loss.backward()
""",
        ["a last batch of 1", "adaptive_avg_pool2d(self.maps(x), 1).flatten(1)", "drop_last=True"],
    ),
    "a_state_without_its_axis": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(2, 4, batch_first=True), nn.Linear(4, 3)
    def forward(self, x):
        _, last = self.rnn(x)
        return F.log_softmax(self.head(last.squeeze()), 1)

loader = DataLoader(TensorDataset(torch.rand(9, 5, 2)), batch_size=4)
for x, in loader:
    Net()(x)
""",
        ["axis 1 does not exist", "a last batch of 1", "last.squeeze(0)"],
    ),
    "a_filter_that_keeps_its_type": (
        """
class Smooth(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.bank = torch.rand(3, 2)
    def forward(self, x):
        return torch.matmul(x * self.scale, self.bank)

Smooth().to(torch.bfloat16)(torch.rand(4, 3).bfloat16())
""",
        ["`self.bank`", "stays float32", 'register_buffer("bank", torch.rand(3, 2))'],
    ),
    "a_series_of_another_type": (
        """
nn.LSTM(3, 4)(torch.from_numpy(np.random.rand(2, 5, 3)))
""",
        ["mixes float32 and float64", ".float()"],
    ),
    "a_state_that_a_module_keeps": (
        """
class River(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.memory = nn.LSTM(1, 4), None
    def forward(self, x):
        y, self.memory = self.cell(x, self.memory)
        return y.sum()

def fit(net):
    for piece in torch.rand(3, 5, 1):
        net(piece).backward()

fit(River())
""",
        ["state of `net` in `self.memory`", "previous one", "self.memory = tuple(s.detach() for s in self.memory)"],
    ),
    "parameters_that_take_no_part": (
        """
class Plant(nn.Module):
    def __init__(self, with_stress=False):
        super().__init__()
        self.with_stress, self.trunk, self.stress = with_stress, nn.Linear(2, 3), nn.Linear(3, 1)
    def forward(self, x):
        h = self.trunk(x)
        return self.stress(h) if self.with_stress else h.sum()

net = Plant()
net(torch.rand(4, 2)).backward()
[p.grad.norm() for p in net.parameters()]
""",
        ["`stress.weight` and `stress.bias` of `net`", "if self.with_stress", "it is False", "p.grad is not None"],
    ),
    "a_function_of_math": (
        """
import math
def window(x):
    return 0.5 - math.cos(x) / 2

window(torch.arange(5) / 5)
""",
        ["`math.cos` takes a single number", "torch.cos(x)"],
    ),
    "class_weights_in_a_sampler": (
        """
labels = torch.tensor([0] * 90 + [1] * 10)
share = torch.unique(labels, return_counts=True)[1] / 100
sampler = torch.utils.data.WeightedRandomSampler(1 / share, len(labels), replacement=False)
for batch in DataLoader(TensorDataset(torch.randn(100, 3), labels), batch_size=10, sampler=sampler):
    pass
""",
        ["only 2 weights", "100 samples", "[labels]", "replacement=True"],
    ),
    "a_sampler_of_the_whole_set_for_a_part": (
        """
class Rows(Dataset):
    def __init__(self, n):
        self.rows = torch.arange(n)
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, position):
        return self.rows[position]

chosen = list(range(40, 60))
loader = DataLoader(Rows(50), sampler=torch.utils.data.SubsetRandomSampler(chosen))
for row in loader:
    pass
""",
        ["SubsetRandomSampler(chosen)", "only 50 samples, 0 to 49"],
    ),
    "an_archive_after_its_with_block": (
        """
np.savez("scans.npz", volume=np.ones((4, 3)))
class Scans(Dataset):
    def __init__(self, path):
        with np.load(path) as self_archive:
            self.stored = self_archive
    def __len__(self):
        return 4
    def __getitem__(self, i):
        return self.stored["volume"][i]

next(iter(DataLoader(Scans("scans.npz"))))
""",
        ["`self.stored`, which is closed", "with np.load(path)", "self.volume = self_archive['volume'][:]"],
    ),
    "lines_after_their_with_block": (
        """
import csv
open("train.csv", "w").write("1,2\\n3,4\\n")
with open("train.csv") as handle:
    lines = csv.reader(handle)
values = [float(line[0]) for line in lines]
""",
        ["`lines`, which is closed", "`lines = csv.reader(handle)`", 'with open("train.csv")'],
    ),
    "a_sign_for_unknown_numbers": (
        """
import pandas as pd
weather = pd.DataFrame({"rain": [0.1, 0.2, 0.3], "wind": ["3.5", "n/a?", "4"]})
x = torch.tensor(weather.to_numpy())
""",
        ["column `wind`", "'n/a?'", "in row 1", "pd.to_numeric"],
    ),
    "a_class_that_the_mapping_lacks": (
        """
import pandas as pd
shops = pd.read_csv(__import__("io").StringIO("city,size\\nBonn,3\\nKiel ,2\\nBonn,1\\n"))
ids = {"bonn": 0, "kiel": 1}
shops["target"] = shops["city"].str.lower().map(ids)
y = torch.tensor(shops["target"].astype(int).to_numpy())
""",
        ["row 1", "'kiel '", "not a key of `ids`", ".str.strip()"],
    ),
    "a_gap_after_a_shift": (
        """
import pandas as pd
sales = pd.DataFrame({"sold": [3, 4, 5]})
sales["before"] = sales["sold"].shift(1)
x = sales["before"].astype("int64")
""",
        ["`sales['sold'].shift(1)`".replace("'", '"'), "in 1 row, the first is 0", "dropna(subset=['before'])"],
    ),
    "parameters_counted_before_the_optimizer": (
        """
net = nn.Linear(3, 2)
weights = (p for p in net.parameters() if p.ndim > 1)
print(sum(p.numel() for p in weights))
torch.optim.Adam(weights)
""",
        ["`weights` is a generator", "weights = [p for p in net.parameters() if p.ndim > 1]"],
    ),
    "a_generator_in_the_second_epoch": (
        """
stream = (torch.ones(2) * i for i in range(3))
for epoch in range(2):
    total = count = 0
    for value in stream:
        total, count = total + value.sum(), count + 1
    print(total / count, 1 / count)
""",
        [
            "`stream` is a generator",
            "first pass of the loop around it",
            "stream = [torch.ones(2) * i for i in range(3)]",
        ],
    ),
    "boxes_with_width_and_height": (
        """
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn
marks = [[50.0, 60.0, 20.0, 30.0]]
model = fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None, num_classes=2)
model([torch.rand(3, 96, 96)], [{"boxes": torch.tensor(marks), "labels": torch.tensor([1])}])
""",
        ["[x1, y1, x2, y2]", "[x, y, width, height]", "box_convert(torch.tensor(marks), 'xywh', 'xyxy')"],
    ),
    "linear_after_conv": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 48, 5, stride=4)
        self.fc1 = nn.Linear(4500, 500)

    def forward(self, x):
        x = F.relu(self.conv(x))
        return self.fc1(x.flatten(1))

Net()(torch.rand(64, 3, 100, 100))
""",
        ["`fc1`", "27648", "4500", "48 x 24 x 24", "in_features=27648"],
    ),
    "a_sample_of_a_generator_in_both_losses": (
        """
g, d, judge = nn.Linear(3, 5), nn.Linear(5, 1), nn.BCEWithLogitsLoss()
ones, zeros = torch.ones(4, 1), torch.zeros(4, 1)
fake = g(torch.randn(4, 3))
d_loss = judge(d(torch.rand(4, 5)), ones) + judge(d(fake), zeros)
d_loss.backward()
g_loss = judge(d(fake), ones)
g_loss.backward()
""",
        ["both losses are computed from `fake`", "`fake.detach()`"],
    ),
    "an_index_in_a_function_of_the_loss": (
        """
def off(scores, truth):
    level = scores.argmax(dim=1)
    return (level - truth).abs().float().mean()
loss = off(nn.Linear(3, 4)(torch.rand(5, 3)), torch.ones(5))
loss.backward()
""",
        ["`argmax` has no gradient", "`scores.softmax(...)`", "accuracy only"],
    ),
    "a_comma_at_the_end": (
        """
z = torch.rand(3, 4).flatten(1),
F.dropout(z)
""",
        ["a tuple of one item", "The comma at the end", "z = torch.rand(3, 4).flatten(1)"],
    ),
    "layers_appended_to_a_list": (
        """
class Tides(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = []
        for size in (3, 4):
            self.stages.append(nn.Linear(size, size + 1))
torch.optim.Adam(Tides().parameters())
""",
        ["`self.stages`", "nn.ModuleList"],
    ),
    "shares_cut_to_whole_numbers": (
        """
data = TensorDataset(torch.rand(413, 2))
sizes = [int(0.7 * 413), int(0.15 * 413), int(0.15 * 413)]
torch.utils.data.random_split(data, sizes)
""",
        ["289 + 61 + 61 = 411 and not 413"],
    ),
    "a_whole_model_in_a_file": (
        """
net = nn.Linear(2, 3)
torch.save(net, "net.pt")
torch.load("net.pt")
""",
        ["the whole model as a Python object", "torch.save(net.state_dict()", "`load_state_dict`"],
    ),
    "every_pair_at_once": (
        """
points = torch.rand(400_000, 16)
distances = (points[:, None] - points[None]).norm(dim=-1)
""",
        ["400,000 x 400,000 x 16", "10.2 TB", "chunks along axis 0 of `points`"],
    ),
    "an_absurd_layer": (
        "nn.Linear(512 * 7 * 7 * 1000, 40960)\n",
        ["25,088,000 is `in_features`", "40,960 is `out_features`", "4.11 TB"],
    ),
    "a_square_of_a_name": (
        """
COUNT = 3_000_000
np.zeros((COUNT, COUNT))
""",
        ["3,000,000 is `COUNT`", "72 TB"],
    ),
    "linear_after_a_flattened_batch": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.fc = nn.Linear(8 * 26 * 26, 10)
    def forward(self, x):
        x = torch.relu(self.conv(x))
        return self.fc(x.flatten())
Net()(torch.rand(8, 3, 28, 28))
""",
        ["8 samples x 5408", "torch.flatten(x, 1)", "`in_features` is right"],
    ),
    "linear_after_a_batch_viewed_as_one_row": (
        """
head = nn.Linear(50, 2)
features = torch.rand(4, 6, 10)
features = features.view(-1)
head(features)
""",
        ["240 values", "torch.flatten(features, 1)", "values of one sample"],
    ),
    "map_of_scores_for_each_sample": (
        """
critic = nn.Conv2d(8, 1, 4)
real = torch.ones(16)
score = critic(torch.rand(16, 8, 8, 8)).view(-1)
nn.BCEWithLogitsLoss()(score, real)
""",
        ["25 values for each of 16 samples", "5 x 5"],
    ),
    "value_for_each_channel_added_to_a_map": (
        """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Linear(4, 12)
    def forward(self, h, t):
        return h + self.time(t)
Block()(torch.rand(2, 12, 7, 7), torch.rand(2, 4))
""",
        ["12", "channel", "self.time(t)[:, :, None, None]"],
    ),
    "one_hot_of_masks_with_void": (
        """
mask = torch.tensor([0, 3, 255])
F.one_hot(mask, 21)
""",
        ["255", "ignored", "masked_fill"],
    ),
    "linear_not_flattened": (
        """
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(4), nn.Linear(128, 10))
model(torch.rand(2, 3, 16, 16))
""",
        ["(2, 8, 4, 4)", "flatten", "128"],
    ),
    "linear_sequential_width": (
        """
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(32, 10))
model(torch.randn(5, 20))
""",
        ["`2`", "64 features", "in_features=64"],
    ),
    "product_transposed": (
        """
a = torch.randn(4, 8)
w = torch.randn(3, 8)
y = a @ w
""",
        ["`a @ w`", "(4, 8)", "(3, 8)", "w.T"],
    ),
    "nhwc": (
        """
images = torch.rand(4, 64, 48, 3)
conv = nn.Conv2d(3, 8, 3)
conv(images)
""",
        ["permute(0, 3, 1, 2)", "channels stand last"],
    ),
    "single_image": (
        """
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
model(torch.rand(3, 32, 32))
""",
        ["batch axis", "unsqueeze(0)"],
    ),
    "grayscale": (
        """
net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
net(torch.rand(4, 1, 28, 28))
""",
        ["grayscale", "RGB", "in_channels=1"],
    ),
    "channels_between_layers": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 16, 3)
        self.mid = nn.Conv2d(32, 64, 3)
    def forward(self, x):
        return self.mid(self.down(x))
Net()(torch.rand(2, 3, 20, 20))
""",
        ["`mid`", "16 channels", "in_channels=16"],
    ),
    "broadcast_column": (
        """
prediction = torch.randn(16, 3)
weights = torch.rand(16)
loss = (prediction * weights).mean()
""",
        ["`weights`", "(16, 3)", "[:, None]"],
    ),
    "last_batch_state": (
        """
data = TensorDataset(torch.randn(50, 7, 5), torch.zeros(50))
loader = DataLoader(data, batch_size=16)
rnn = nn.GRU(5, 8, batch_first=True)
h = torch.zeros(1, 16, 8)
for x, y in loader:
    out, _ = rnn(x, h)
""",
        ["(1, 2, 8)", "drop_last=True", "last batch"],
    ),
    "view_of_last_batch": (
        """
loader = DataLoader(TensorDataset(torch.randn(50, 4, 4)), batch_size=16)
for (x,) in loader:
    y = x.view(16, 16)
""",
        ["(2, 4, 4)", "drop_last"],
    ),
    "view_wrong_size": (
        """
x = torch.randn(8, 16, 5, 5)
y = x.view(-1, 16 * 6 * 6)
""",
        ["(8, 16, 5, 5)", "400", "flatten"],
    ),
    "view_strides": (
        """
x = torch.randn(8, 16, 5).transpose(1, 2)
y = x.view(8, -1)
""",
        ["reshape"],
    ),
    "bce_shape": (
        """
model = nn.Linear(4, 1)
loss = nn.BCEWithLogitsLoss()(model(torch.randn(8, 4)), torch.ones(8))
""",
        ["(8, 1)", "squeeze", "unsqueeze"],
    ),
    "cat_axes": (
        """
a = torch.randn(4, 10)
b = torch.randn(6, 8)
torch.cat([a, b], dim=1)
""",
        ["`a`", "`b`"],
    ),
    "lstm_features": (
        """
lstm = nn.LSTM(10, 20, batch_first=True)
lstm(torch.randn(4, 7, 12))
""",
        ["LSTM(10, 20", "12", "input_size=12"],
    ),
    "dimension": (
        """
scores = torch.randn(5)
F.softmax(scores, dim=1)
""",
        ["`scores` is (5,)", "unsqueeze"],
    ),
    "layer_norm": (
        """
norm = nn.LayerNorm(64)
norm(torch.randn(2, 64, 10))
""",
        ["64", "transpose", "axis 1"],
    ),
    "small_image": (
        """
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.Conv2d(4, 8, 3), nn.MaxPool2d(2), nn.Conv2d(8, 8, 5))
model(torch.rand(1, 1, 14, 14))
""",
        ["2 x 2", "larger images"],
    ),
    "unpack_dataset": (
        """
class Faces(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, i):
        return torch.zeros(3), 1, "name"
for image, label in DataLoader(Faces(), batch_size=4):
    pass
""",
        ["`Faces.__getitem__` returns 3"],
    ),
    "gray_and_rgb": (
        """
samples = [torch.zeros(3, 8, 8), torch.zeros(1, 8, 8)]
class Set(Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, i):
        return samples[i]
next(iter(DataLoader(Set(), batch_size=2)))
""",
        ["grayscale", 'convert("RGB")'],
    ),
    "boxes": (
        """
class Set(Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, i):
        return torch.zeros(3, 8, 8), torch.zeros(i + 1, 4)
next(iter(DataLoader(Set(), batch_size=2)))
""",
        ["boxes", "tuple(zip(*batch))"],
    ),
    "labels_from_one": (
        """
model = nn.Linear(6, 4)
labels = torch.tensor([1, 2, 3, 4])
F.cross_entropy(model(torch.randn(4, 6)), labels)
""",
        ["counted from 1", "labels - 1"],
    ),
    "too_few_outputs": (
        """
head = nn.Linear(6, 4)
labels = torch.tensor([0, 2, 6, 1])
F.cross_entropy(head(torch.randn(4, 6)), labels)
""",
        ["label 6", "nn.Linear(6, 7)"],
    ),
    "minus_one": (
        """
criterion = nn.CrossEntropyLoss()
target = torch.tensor([0, -1, 2, 1])
criterion(torch.randn(4, 3), target)
""",
        ["-1", "ignore_index=-1"],
    ),
    "one_hot_integers": (
        """
target = F.one_hot(torch.tensor([0, 1, 2]), 3)
F.cross_entropy(torch.randn(3, 3), target)
""",
        ["one-hot", "argmax(1)", ".float()"],
    ),
    "target_column": (
        """
target = torch.randint(0, 3, (5, 1))
F.cross_entropy(torch.randn(5, 3), target)
""",
        ["(5, 1)", "squeeze(1)"],
    ),
    "mask_channel": (
        """
mask = torch.randint(0, 3, (2, 1, 8, 8))
F.cross_entropy(torch.randn(2, 3, 8, 8), mask)
""",
        ["(2, 1, 8, 8)", "squeeze(1)"],
    ),
    "class_weights": (
        """
criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0]))
criterion(torch.randn(4, 3), torch.tensor([0, 1, 2, 0]))
""",
        ["2 class weights", "3 outputs"],
    ),
    "bce_without_sigmoid": (
        """
criterion = nn.BCELoss()
criterion(torch.randn(8, 1) * 5, torch.ones(8, 1))
""",
        ["sigmoid", "BCEWithLogitsLoss"],
    ),
    "positions": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.position = nn.Embedding(16, 8)
    def forward(self, tokens):
        return self.position(torch.arange(tokens.shape[1]))
Net()(torch.zeros(2, 20, dtype=torch.long))
""",
        ["`position` has 16 rows", "19", "positions"],
    ),
    "double": (
        """
x = torch.from_numpy(np.random.rand(4, 3))
nn.Linear(3, 2)(x)
""",
        ["`x` is float64", ".float()"],
    ),
    "uint8": (
        """
images = torch.randint(0, 255, (2, 3, 8, 8), dtype=torch.uint8)
nn.Conv2d(3, 4, 3)(images)
""",
        ["uint8", "/ 255"],
    ),
    "mean_of_integers": (
        """
hits = torch.tensor([1, 0, 1])
accuracy = hits.mean()
""",
        ["`hits` is int64", "hits.float()"],
    ),
    "float_target": (
        """
target = torch.tensor([0.0, 1.0, 2.0])
F.cross_entropy(torch.randn(3, 3), target)
""",
        ["`target`", ".long()"],
    ),
    "loss_of_item": (
        """
model = nn.Linear(3, 1)
loss = torch.tensor(F.mse_loss(model(torch.randn(4, 3)), torch.zeros(4, 1)).item())
loss.backward()
""",
        ["`loss`", "item"],
    ),
    "no_grad_block": (
        """
model = nn.Linear(3, 1)
with torch.no_grad():
    loss = model(torch.randn(4, 3)).mean()
loss.backward()
""",
        ["torch.no_grad()"],
    ),
    "hidden_carried": (
        """
cell = nn.GRUCell(3, 4)
h = torch.zeros(2, 4)
for step in range(3):
    h = cell(torch.randn(2, 3), h)
    loss = h.mean()
    loss.backward()
""",
        ["`h`", "h = h.detach()"],
    ),
    "two_backward": (
        """
model = nn.Linear(3, 2)
out = model(torch.randn(4, 3)).tanh()
a = out.mean()
b = (out * out).mean()
a.backward()
b.backward()
""",
        ["`a.backward()`", "Add both losses"],
    ),
    "gan_step": (
        """
net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
out = net(torch.randn(4, 3))
first = out.mean()
second = (out ** 2).mean()
first.backward(retain_graph=True)
optimizer.step()
second.backward()
""",
        ["`optimizer.step()`", "before the first `step()`"],
    ),
    "plain_list": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(3, 3) for _ in range(2)]
torch.optim.SGD(Net().parameters(), lr=0.1)
""",
        ["plain Python list", "nn.ModuleList"],
    ),
    "none_sample": (
        """
class Set(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, i):
        if i == 2:
            return None
        return torch.zeros(2)
next(iter(DataLoader(Set(), batch_size=4)))
""",
        ["returned None", "`return None`", "collate_fn"],
    ),
    "pil_sample": (
        """
from PIL import Image
class Set(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, i):
        return Image.new("RGB", (4, 4)), 1
next(iter(DataLoader(Set(), batch_size=4)))
""",
        ["PIL image", "ToTensor()"],
    ),
    "pandas_index": (
        """
import pandas as pd
table = pd.DataFrame({"label": range(10)})
train = table[table.label > 3]
for i in range(3):
    train["label"][i]
""",
        ["labelled 0", "reset_index(drop=True)"],
    ),
    "column": (
        """
import pandas as pd
table = pd.DataFrame({"Label": range(10), "path": "a"})
table["label"]
""",
        ["'Label'", "has no column"],
    ),
    "head_of_another_size": (
        """
saved = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 10)).state_dict()
model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
model.load_state_dict(saved)
""",
        ["10 outputs", "strict=False", "last layer"],
    ),
    "whole_checkpoint": (
        """
model = nn.Linear(3, 4)
checkpoint = {"epoch": 3, "model_state_dict": model.state_dict(), "optimizer_state_dict": {}}
model.load_state_dict(checkpoint)
""",
        ["whole checkpoint", "checkpoint['model_state_dict']"],
    ),
    "dict_is_no_model": (
        """
model = nn.Linear(3, 4).state_dict()
model.eval()
""",
        ["state dict", "load_state_dict"],
    ),
    "layer_class_called": (
        """
x = torch.randn(4, 3)
y = nn.ReLU(x) + 1
""",
        ["ReLU", "()"],
    ),
    "loss_class_called": (
        """
output, target = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
loss = nn.CrossEntropyLoss(output, target)
""",
        ["nn.CrossEntropyLoss()(output, target)"],
    ),
    "forward_without_return": (
        """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
    def forward(self, x):
        x = self.lin(x)
block, head = Block(), nn.Linear(3, 1)
head(block(torch.randn(2, 3)))
""",
        ["None", "`Block.forward`", "return"],
    ),
    "lstm_tuple": (
        """
lstm, head = nn.LSTM(3, 4), nn.Linear(4, 1)
out = lstm(torch.randn(5, 2, 3))
head(out)
""",
        ["tuple", "out, _ = lstm("],
    ),
    "forward_misspelled": (
        """
class Net(nn.Module):
    def foward(self, x):
        return x
Net()(torch.zeros(1))
""",
        ["`foward`", "Rename"],
    ),
    "numpy_float": (
        """
x = np.zeros(3, dtype=np.float)
""",
        ["numpy 1.24", "np.float64"],
    ),
    "keyword": (
        """
def build(width, depth=2):
    return nn.Linear(width, depth)
build(width=3, depht=4)
""",
        ["`depth=`", "no such parameter"],
    ),
    "undefined_name": (
        """
model = nn.Linear(3, 1)
optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer.step()
""",
        ["`optimizer`"],
    ),
    "relative_path": (
        """
open("data/trian.csv")
""",
        ["relative path", "started"],
    ),
    "numpy_of_graph": (
        """
model = nn.Linear(3, 1)
out = model(torch.randn(4, 3))
out.numpy()
""",
        ["out.detach().numpy()"],
    ),
    "grad_none": (
        """
model = nn.Linear(3, 1)
norm = model.weight.grad.norm()
""",
        ["no parameter of `model` has a gradient"],
    ),
    "not_enough_in_list": (
        """
names = ["a", "b", "c"]
for i in range(1, 4):
    print(names[i])
""",
        ["3 elements", "last index is 2"],
    ),
    "linear_after_pooling": (
        """
HIDDEN = 64
enc = nn.GRU(12, HIDDEN, batch_first=True)
out = nn.Linear(HIDDEN, 3)
seq = torch.rand(4, 9, 12)
states, last = enc(seq)
score = out(last)
pooled = torch.cat([states.mean(1), states.max(1).values], dim=1)
score = out(pooled)
""",
        ["`out`", "nn.Linear(HIDDEN, 3)", "128 features", "in_features=128"],
    ),
    "clips": (
        """
frames = torch.rand(2, 16, 3, 32, 32)
backbone = nn.Conv3d(3, 8, 3)
backbone(frames)
""",
        ["`backbone`", "channels stand in axis 2", "frames.transpose(1, 2)"],
    ),
    "numpy_product": (
        """
W = np.random.rand(4, 3); X = np.random.rand(10, 3)
pred = X @ W
""",
        ["`X` (10, 3)", "`W` (4, 3)", "X @ W.T"],
    ),
    "positions_too_short": (
        """
pos = torch.zeros(1, 50, 32)
tokens = torch.rand(4, 64, 32)
h = tokens + pos
""",
        ["torch.zeros(1, 50, 32)", "(4, 64, 32)"],
    ),
    "joined_rows": (
        """
a = torch.rand(4, 10); b = torch.rand(3, 10)
both = torch.cat((a, b), dim=1)
""",
        ["cannot be joined along axis 1", "dim=0"],
    ),
    "odd_map": (
        """
class UNetish(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2)
    def forward(self, x):
        d = self.down(x)
        return torch.cat([x, self.up(d)], 1)
UNetish()(torch.rand(1, 3, 37, 37))
""",
        ["37 is odd", "F.interpolate"],
    ),
    "view_of_another_map": (
        """
feat = torch.rand(6, 32, 5, 5)
flat = feat.view(6, 32 * 7 * 7)
""",
        ["32 x 5 x 5 = 800", "torch.flatten(feat, 1)"],
    ),
    "none_in_a_sample": (
        """
class Mixed(Dataset):
    def __len__(self): return 4
    def __getitem__(self, i): return (torch.rand(3), None if i == 2 else i)
next(iter(DataLoader(Mixed(), batch_size=4)))
""",
        ["`Mixed.__getitem__`", "returned None"],
    ),
    "length_as_a_number": (
        """
class Pairs(Dataset):
    def __init__(self): self.paths = list(range(5))
    def __len__(self): return 6
    def __getitem__(self, k): return self.paths[k]
for p in DataLoader(Pairs(), batch_size=2): pass
""",
        ["`self.paths`, which has 5", "return len(self.paths)"],
    ),
    "output_changed_in_a_script": (
        """
x = torch.rand(3, requires_grad=True)
y = torch.sigmoid(x)
y *= 2
y.sum().backward()
""",
        ["`y *= 2`", "y = y * 2"],
    ),
    "loss_in_parentheses": (
        """
w = torch.rand(3, requires_grad=True)
(w * 2).backward()
""",
        ["(w * 2).mean().backward()"],
    ),
    "output_without_graph": (
        """
net = nn.Linear(3, 2)
with torch.no_grad():
    o = net(torch.rand(1, 3))
o.sum().backward()
""",
        ["with torch.no_grad()"],
    ),
    "namespace_in_a_file": (
        """
import argparse
torch.save({"w": torch.ones(1), "cfg": argparse.Namespace(lr=1)}, "c.pt")
torch.load("c.pt")
""",
        ["argparse.Namespace(lr=1)", "add_safe_globals([argparse.Namespace])"],
    ),
    "optimizer_by_its_name": (
        """
m = nn.Linear(2, 2)
o = torch.optim.SGD([{"params": [m.weight]}, {"params": [m.bias]}], lr=0.1)
o2 = torch.optim.SGD(m.parameters(), lr=0.1)
o2.load_state_dict(o.state_dict())
""",
        ["`o2` (`torch.optim.SGD(m.parameters(), lr=0.1)`", "2 parameter groups"],
    ),
    "container_in_one_line": (
        """
class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.ls = nn.ModuleList([nn.Linear(2, 2)])
    def forward(self, x): return self.ls(x)
Stack()(torch.rand(1, 2))
""",
        ["`self.ls`", "for layer in self.ls: x = layer(x)"],
    ),
    "no_return_in_a_call": (
        """
class B(nn.Module):
    def __init__(self):
        super().__init__(); self.l = nn.Linear(2, 2)
    def forward(self, x):
        h = self.l(x)
b = B()
F.relu(b(torch.rand(1, 2)))
""",
        ["`b(torch.rand(1, 2))` is None", "`B.forward`", "has no `return`"],
    ),
    "no_return_in_one_mode": (
        """
class Roof(nn.Module):
    def __init__(self):
        super().__init__()
        self.area = nn.Linear(4, 1)
    def forward(self, x):
        if self.training:
            x = F.dropout(self.area(x), 0.2)
        else:
            return self.area(x)
def train(model):
    guess = model(torch.rand(3, 4))
    return guess.mean()
train(Roof())
""",
        ["`Roof.forward`", "without `return` where `self.training` is true"],
    ),
    "a_label_with_a_comma": (
        """
class Nests(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, i):
        eggs = torch.tensor(i),
        return torch.rand(3), eggs
for nest, eggs in DataLoader(Nests(), batch_size=2):
    F.cross_entropy(torch.rand(2, 4), eggs)
""",
        ["The comma at the end of `eggs = torch.tensor(i),`", "a list of one tensor", "Remove the comma"],
    ),
    "labels_of_a_column_with_a_gap": (
        """
import pandas as pd
table = pd.DataFrame({"kind": ["elm", "oak", "Oak "] * 4})
numbers = {"elm": 0, "oak": 1}
table["label"] = table["kind"].map(numbers)
labels = torch.tensor(table["label"].to_numpy())
F.cross_entropy(torch.rand(12, 2), labels)
""",
        ["gives NaN for each value that is not a key of `numbers`", "A column with NaN is float64", "capitals"],
    ),
    "a_hyphen_in_an_option": (
        """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--hidden-size", type=int, default=8)
args = parser.parse_args([])
size = 2
nn.Linear(4, args.hidden-size)
""",
        ["as the subtraction of `size`", "Write `args.hidden_size`"],
    ),
    "ids_without_their_zeros": (
        """
import io, os, tempfile
import pandas as pd
from PIL import Image
folder = tempfile.mkdtemp()
open(os.path.join(folder, "0007.png"), "w").close()
table = pd.read_csv(io.StringIO("scan,grade\\n0007,2\\n"))
for scan in table.scan:
    Image.open(os.path.join(folder, f"{scan}.png"))
""",
        ["has `0007.png`", "leading zeros", "pd.read_csv(io.StringIO", "dtype={", "number:04d"],
    ),
    "gradient_of_a_result_in_an_update": (
        """
rate = torch.ones(3, requires_grad=True) * 0.1
(rate ** 2).sum().backward()
with torch.no_grad():
    rate -= 0.5 * rate.grad
""",
        [
            "`rate` is the result of an operation",
            "from the leaf `torch.ones(3, requires_grad=True)`",
            "`rate = (torch.ones(3) * 0.1).requires_grad_()`",
        ],
    ),
    "weights_under_a_name_of_their_own": (
        """
import io
file = io.BytesIO()
def keep(actor, adam):
    torch.save({"adam": adam.state_dict(), "actor": actor.state_dict(), "games": 3}, file)
actor = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
keep(actor, torch.optim.Adam(actor.parameters()))
file.seek(0)
actor.load_state_dict(torch.load(file))
""",
        ["a dict with the entries", "under 'actor'", "load_state_dict(torch.load(file)['actor'])"],
    ),
    "a_hook_that_detaches": (
        """
def store(kept):
    def hook(module, inputs, output):
        kept.append(output.detach())
        return kept[-1]
    return hook
net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
net[1].register_forward_hook(store([]))
loss = net(torch.rand(2, 3)).mean()
loss.backward()
""",
        ["The forward hook of `net[1]`", "returns `kept[-1]`", "has no `return`"],
    ),
    "device_as_a_size": (
        """
dev = torch.device("cpu")
t = torch.zeros(3, 4, dev)
""",
        ["`dev` is a `torch.device`", "device=dev"],
    ),
    "list_to_a_function": (
        """
outs = [torch.rand(2), torch.rand(2)]
F.softmax(outs, dim=0)
""",
        ["`outs` is a list", "torch.stack(outs)"],
    ),
    "layer_misspelled": (
        """
class Model(nn.Module):
    def __init__(self):
        super().__init__(); self.dropout = nn.Dropout(0.1)
    def forward(self, x): return self.droput(x)
Model()(torch.rand(2))
""",
        ["it has `dropout`", "self.dropout(x)"],
    ),
    "list_of_losses": (
        """
w = torch.rand(3, requires_grad=True)
losses = [w.sum() for _ in range(2)]
np.array(losses)
""",
        ["`losses`, a list of 2 tensors", "[t.item() for t in losses]"],
    ),
    "ctc_steps": (
        """
lp = torch.randn(10, 2, 5).log_softmax(2)
F.ctc_loss(lp, torch.ones(2, 3, dtype=torch.long), torch.tensor([12, 10]), torch.tensor([3, 3]))
""",
        ["holds 12", "(10, 2, 5)", "10 time steps", "lp.size(0)"],
    ),
    "old_transform": (
        """
from torchvision import transforms
t = transforms.Scale(10)
""",
        ["transforms.Resize"],
    ),
    "inplace_layer": (
        """
class Block(nn.Module):
    def __init__(self):
        super().__init__(); self.fc = nn.Linear(4, 4); self.act = nn.ReLU(inplace=True)
    def forward(self, x):
        h = torch.tanh(self.fc(x))
        return h + self.act(h)
Block()(torch.rand(2, 4)).sum().backward()
""",
        ["output of `Tanh`", "nn.ReLU(inplace=True)", "nn.ReLU()"],
    ),
}
PROGRAMS |= {
    "training_function": (
        """
class Classifier(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, 32), nn.ReLU())
        self.head = nn.Linear(64, classes)
    def forward(self, x):
        return self.head(self.body(x))
def train(model, loader):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
train(Classifier(8, 3), DataLoader(TensorDataset(torch.randn(20, 8), torch.randint(0, 3, (20,))), batch_size=5))
""",
        ["`head`", "nn.Linear(64, classes)", "32 features"],
    ),
    "encoder_decoder": (
        """
class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
    def forward(self, x):
        skip = self.a(x)
        deep = self.b(F.max_pool2d(skip, 2))
        return torch.cat((skip, self.up(deep)), 1)
UNet()(torch.rand(1, 1, 33, 33))
""",
        ["`self.up(deep)`", "33", "32", "divisible by 2"],
    ),
    "attention_heads": (
        """
q = torch.randn(2, 4, 10, 16)
k = torch.randn(2, 4, 10, 16)
scores = torch.matmul(q, k)
""",
        ["`k`", "transpose"],
    ),
    "time_series_target": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(3, 6, batch_first=True), nn.Linear(6, 5)
    def forward(self, x):
        h, _ = self.rnn(x)
        return self.out(h).reshape(-1, 5)
x, y = torch.randn(4, 7, 3), torch.randint(0, 5, (4,))
F.cross_entropy(Net()(x), y)
""",
        ["28 rows", "4 targets", "7 rows for each sample"],
    ),
    "segmentation_size": (
        """
logits = torch.randn(2, 3, 16, 16)
mask = torch.rand(2, 3, 32, 32)
F.binary_cross_entropy_with_logits(logits, mask)
""",
        ["(2, 3, 32, 32)", "interpolate"],
    ),
    "accuracy_shapes": (
        """
prediction = torch.randint(0, 2, (10, 1))
label = torch.randint(0, 2, (9,))
correct = (prediction.squeeze() == label).sum()
""",
        ["10", "9"],
    ),
    "embedding_negative": (
        """
table = nn.Embedding(10, 4)
table(torch.tensor([1, 2, -1]))
""",
        ["-1", "0 or more"],
    ),
    "vocabulary_from_max": (
        """
ids = torch.tensor([[3, 9, 12]])
class Text(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.emb = nn.Embedding(size, 4)
    def forward(self, x):
        return self.emb(x)
Text(len(set(ids.flatten().tolist())))(ids)
""",
        ["`emb` has 3 rows", "12", "13 rows"],
    ),
    "one_hot_negative": (
        """
labels = torch.tensor([0, 1, -1])
F.one_hot(labels, 3)
""",
        ["-1", "labels"],
    ),
    "numpy_weights_device": (
        """
x = torch.randn(4, 3).double()
model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
model(x)
""",
        ["`x` is float64", ".float()"],
    ),
    "mask_subtraction": (
        """
mask = torch.tensor([True, False])
inverse = 1 - mask
""",
        ["mask"],
    ),
    "argmax_loss": (
        """
model = nn.Linear(3, 4)
guess = model(torch.randn(5, 3)).argmax(1).float()
loss = F.mse_loss(guess, torch.zeros(5))
loss.backward()
""",
        ["argmax"],
    ),
    "frozen": (
        """
model = nn.Linear(3, 4)
for p in model.parameters():
    p.requires_grad = False
loss = model(torch.randn(5, 3)).mean()
loss.backward()
""",
        ["p.requires_grad = False", "freezes"],
    ),
    "leaf_in_place": (
        """
w = torch.ones(3, requires_grad=True)
w += 1
""",
        ["w"],
    ),
    "relu_in_place": (
        """
x = torch.randn(4, 3, requires_grad=True)
y = torch.sigmoid(x)
y[:, 0] = 0
y.sum().backward()
""",
        ["y[:, 0] = 0"],
    ),
    "retain_loss_list": (
        """
model = nn.Linear(3, 1)
total = 0
for step in range(3):
    loss = model(torch.randn(4, 3)).pow(2).mean()
    total += loss
    total.backward()
""",
        ["`total`", "one iteration to the next"],
    ),
    "non_leaf": (
        """
w = torch.randn(3, requires_grad=True) * 0.1
torch.optim.SGD([w], lr=0.1)
""",
        ["`w`", "computed from another tensor", "leaf"],
    ),
    "label_list": (
        """
class Set(Dataset):
    def __len__(self):
        return 3
    def __getitem__(self, i):
        return torch.zeros(2), list(range(i + 1))
next(iter(DataLoader(Set(), batch_size=3)))
""",
        ["lists whose lengths differ", "collate_fn"],
    ),
    "wrong_key": (
        """
config = {"learning_rate": 0.1, "epochs": 3}
lr = config["learning-rate"]
""",
        ["'learning_rate'"],
    ),
    "missing_layers": (
        """
saved = nn.Sequential(nn.Linear(3, 4)).state_dict()
model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
model.load_state_dict(saved)
""",
        ["lacks 2 parameters", "`1.weight`"],
    ),
    "compiled_prefix": (
        """
model = nn.Linear(3, 4)
saved = {f"_orig_mod.{k}": v for k, v in model.state_dict().items()}
model.load_state_dict(saved)
""",
        ["_orig_mod.", "torch.compile", "removeprefix"],
    ),
    "loaded_into_wrapper": (
        """
model = nn.DataParallel(nn.Linear(3, 4))
model.load_state_dict(nn.Linear(3, 4).state_dict())
""",
        ["`module.`", "model.module.load_state_dict"],
    ),
    "float_size": (
        """
layer = nn.Linear(10, 10 / 2)
""",
        ["float", "//"],
    ),
    "list_to_layer": (
        """
features = [torch.randn(3), torch.randn(3)]
nn.Linear(3, 2)(features)
""",
        ["list of tensors", "torch.stack(features)"],
    ),
    "numpy_to_layer": (
        """
x = np.zeros((4, 3), dtype=np.float32)
nn.Linear(3, 2)(x)
""",
        ["numpy array", "torch.from_numpy(x)"],
    ),
    "class_not_made": (
        """
class Net(nn.Module):
    def forward(self, x):
        return x
Net.forward(torch.zeros(1))
""",
        ["instance"],
    ),
    "module_called": (
        """
import tqdm
for i in tqdm(range(3)):
    pass
""",
        ["module", "tqdm.tqdm"],
    ),
    "float_backward": (
        """
model = nn.Linear(3, 1)
loss = model(torch.randn(4, 3)).mean().item()
loss.backward()
""",
        [".item()", "backward()` on the tensor"],
    ),
    "method_typo": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(3, 2)
    def forward(self, x):
        return self.encodr(x)
Net()(torch.zeros(1, 3))
""",
        ["encodr", "encoder"],
    ),
    "wrapped_attribute": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(3, 2)
model = nn.DataParallel(Net())
model.encoder
""",
        ["model.module.encoder"],
    ),
    "list_on_device": (
        """
batch = [torch.zeros(2), torch.zeros(3)]
batch.to("cpu")
""",
        ["list", "for t in batch"],
    ),
    "pandas_append": (
        """
import pandas as pd
log = pd.DataFrame()
log = log.append({"loss": 1.0}, ignore_index=True)
""",
        ["pandas 2.0", "pd.concat"],
    ),
    "pillow": (
        """
from PIL import Image
Image.new("RGB", (4, 4)).resize((2, 2), Image.ANTIALIAS)
""",
        ["Pillow 10", "LANCZOS"],
    ),
    "save_folder": (
        """
torch.save(nn.Linear(2, 2).state_dict(), "checkpoints/best.pt")
""",
        ["`checkpoints`", "makedirs"],
    ),
    "unbound": (
        """
def run(n):
    for i in range(n):
        loss = i
    return loss
run(0)
""",
        ["`loss`", "never ran", "`range(n)`"],
    ),
    "scalar_of_many": (
        """
losses = torch.rand(4)
print(losses.item())
""",
        ["`losses`", "(4,)", "mean().item()"],
    ),
    "if_tensor": (
        """
x = torch.randn(3)
if x > 0:
    pass
""",
        ["x > 0", ".any()"],
    ),
    "group_norm": (
        """
nn.GroupNorm(32, 48)
""",
        ["48", "32"],
    ),
    "heads": (
        """
nn.MultiheadAttention(30, 4)
""",
        ["30", "4"],
    ),
    "normalize_gray": (
        """
from torchvision import transforms
transforms.Normalize([0.5, 0.5, 0.5], [0.5, 0.5, 0.5])(torch.rand(1, 8, 8))
""",
        ["1", "3"],
    ),
    "einsum": (
        """
a, b = torch.randn(3, 4), torch.randn(5, 6)
torch.einsum("ij,jk->ik", a, b)
""",
        ["j"],
    ),
    "mask_index": (
        """
x = torch.randn(4, 5)
keep = torch.ones(5, dtype=torch.bool)
x[keep]
""",
        ["(5,)", "`keep`"],
    ),
    "numpy_ragged": (
        """
rows = [[1, 2, 3], [4, 5]]
np.array(rows, dtype=np.float32)
""",
        ["rows"],
    ),
    "value_of_string": (
        """
label = "cat"
torch.tensor([label])
""",
        ["label"],
    ),
    "empty_stack": (
        """
losses = []
torch.stack(losses)
""",
        ["losses", "empty"],
    ),
    "empty_cat": (
        """
outputs = []
torch.cat(outputs)
""",
        ["outputs", "empty"],
    ),
    "lr_zero_division": (
        """
loader = DataLoader(TensorDataset(torch.zeros(3, 2)), batch_size=8, drop_last=True)
total = 0.0
for (x,) in loader:
    total += 1
mean = total / len(loader)
""",
        ["drop_last", "3"],
    ),
}
PROGRAMS |= {
    "parameters_not_called": (
        """
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters, lr=0.1)
""",
        ["`model.parameters`", "not called", "model.parameters()"],
    ),
    "state_dict_not_called": (
        """
model = nn.Linear(3, 1)
weight = model.state_dict["weight"]
""",
        ["`model.state_dict`", "not called"],
    ),
    "model_to_optimizer": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(2, 2)
model = Net()
optimizer = torch.optim.Adam(model)
""",
        ["`model`", "parameters()"],
    ),
    "tensor_to_optimizer": (
        """
w = torch.zeros(3, requires_grad=True)
optimizer = torch.optim.SGD(w, lr=0.1)
""",
        ["single tensor", "[w]"],
    ),
    "epochs_as_number": (
        """
epochs = 3
for epoch in epochs:
    pass
""",
        ["`epochs`", "range(epochs)"],
    ),
    "loader_index": (
        """
loader = DataLoader(TensorDataset(torch.zeros(4, 2)), batch_size=2)
first = loader[0]
""",
        ["`loader`", "next(iter(loader))"],
    ),
    "loader_next": (
        """
loader = DataLoader(TensorDataset(torch.zeros(4, 2)), batch_size=2)
batch = iter(loader).next()
""",
        ["next(iterator)"],
    ),
    "prefetch": (
        """
DataLoader(TensorDataset(torch.zeros(4, 2)), prefetch_factor=2)
""",
        ["prefetch_factor", "num_workers"],
    ),
    "integer_parameter": (
        """
w = torch.tensor([1, 2], requires_grad=True)
""",
        ["whole numbers", "float32"],
    ),
    "from_list": (
        """
x = torch.from_numpy([1.0, 2.0])
""",
        ["torch.tensor([1.0, 2.0])"],
    ),
    "index_put": (
        """
table = torch.zeros(4)
table[torch.tensor([0, 1])] = torch.tensor([1, 2])
""",
        ["int64"],
    ),
    "in_place_cast": (
        """
counts = torch.zeros(3, dtype=torch.long)
weights = torch.rand(3)
counts += weights
""",
        ["`counts", "float"],
    ),
    "verbose_scheduler": (
        """
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.optim.lr_scheduler.StepLR(optimizer, 3, verbose=True)
""",
        ["verbose"],
    ),
    "zero_dimensional": (
        """
out = torch.randn(1, 1).squeeze()
for value in out:
    pass
""",
        ["`out`", "without axes"],
    ),
    "transform_module": (
        """
from torchvision import transforms, datasets
from PIL import Image
import os
os.makedirs("data/a", exist_ok=True)
Image.new("RGB", (4, 4)).save("data/a/1.png")
tensor = transforms.ToTensor()
train = datasets.ImageFolder("data", transform=transforms)
train[0]
""",
        ["transform=transforms", "module"],
    ),
    "imshow": (
        """
import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt
image = torch.rand(3, 8, 8)
plt.imshow(image)
""",
        ["channels stand first", "permute(1, 2, 0)"],
    ),
    "sort_returns_none": (
        """
scores = [3, 1, 2]
ordered = scores.sort()
print(ordered[0])
""",
        ["`ordered` is None", "in place"],
    ),
    "difference_of_names": (
        """
y_test = np.zeros(68)
y_fit = np.zeros(272)
error = sum((y_test - y_fit) ** 2)
""",
        ["`y_test - y_fit`", "68", "272"],
    ),
    "dict_batch": (
        """
class Set(Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, i):
        return {"image": torch.zeros(3, 4, 4), "label": 1}
conv = nn.Conv2d(3, 4, 3)
for batch in DataLoader(Set(), batch_size=2):
    conv(batch)
""",
        ["dict"],
    ),
    "string_batch": (
        """
class Set(Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, i):
        return {"image": torch.zeros(3, 4, 4), "label": 1}
conv = nn.Conv2d(3, 4, 3)
for image, label in DataLoader(Set(), batch_size=2):
    conv(image)
""",
        ["`image` is a text", "dict"],
    ),
    "embedding_in_layers": (
        """
class Encoder(nn.Module):
    def __init__(self, vocabulary, dim):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, dim)
    def forward(self, ids):
        return self.tokens(ids)
class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.encoder = Encoder(config["vocabulary"], 8)
    def forward(self, ids):
        return self.encoder(ids).sum()
model = Model({"vocabulary": 100})
model(torch.tensor([[5, 100]]))
""",
        ["`encoder.tokens`", "100", "101 rows"],
    ),
}
PROGRAMS |= {
    "bidirectional": (
        """
class Tagger(nn.Module):
    def __init__(self, hidden=6):
        super().__init__()
        self.lstm = nn.LSTM(4, hidden, batch_first=True, bidirectional=True)
        self.out = nn.Linear(hidden, 3)
    def forward(self, x):
        return self.out(self.lstm(x)[0])
Tagger()(torch.randn(2, 5, 4))
""",
        ["bidirectional", "2 x 6", "12"],
    ),
    "image_size_in_a_config": (
        """
CONFIG = {"widths": [8, 16], "features": 64, "side": 32}
layers, last = [], 3
for width in CONFIG["widths"]:
    layers += [nn.Conv2d(last, width, 3, padding=1), nn.MaxPool2d(2)]
    last = width
model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(CONFIG["features"], 2))
pages = torch.rand(2, 3, CONFIG["side"], CONFIG["side"])
model(pages)
""",
        ["16 x 8 x 8", "32 x 32", "1024"],
    ),
    "norm_of_sequences": (
        """
norm = nn.BatchNorm1d(6)
norm(torch.randn(3, 9, 6))
""",
        ["last axis", "transpose(1, 2)", "LayerNorm(6)"],
    ),
    "padding_mask": (
        """
attention = nn.MultiheadAttention(8, 2)
x = torch.randn(3, 5, 8)
attention(x, x, x, key_padding_mask=torch.zeros(3, 5, dtype=torch.bool))
""",
        ["batch_first=True", "(length, batch, features)"],
    ),
    "size_from_the_data": (
        """
def adjacency(pairs):
    n = int(pairs.max()) + 1
    return torch.zeros(n, n)
links = adjacency(torch.tensor([[0, 3]]))
nodes = torch.randn(6, 2)
out = links @ nodes
""",
        ["pairs.max()", "`links`"],
    ),
    "missing_category": (
        """
import pandas as pd
column = pd.Series(["a", None, "b"]).astype("category")
codes = torch.tensor(column.cat.codes.to_numpy(), dtype=torch.long)
F.one_hot(codes)
""",
        ["cat.codes", "missing values", "fillna"],
    ),
    "parameter_in_place": (
        """
weights = [torch.ones(2, requires_grad=True)]
weights[0].sum().backward()
for w in weights:
    w -= 0.1 * w.grad
""",
        ["torch.no_grad()", "would not update"],
    ),
    "state_of_an_object": (
        """
class Runner:
    def __init__(self):
        self.cell, self.state = nn.GRUCell(2, 3), None
    def step(self, x):
        self.state = self.cell(x, self.state)
        self.state.mean().backward()
runner = Runner()
for _ in range(2):
    runner.step(torch.randn(1, 2))
""",
        ["`self.state`", "self.state.detach()"],
    ),
    "windows_past_the_end": (
        """
class Windows(Dataset):
    def __init__(self, values, past=4, ahead=3):
        self.values, self.past, self.ahead = values, past, ahead
    def __len__(self):
        return len(self.values) - self.past
    def __getitem__(self, i):
        middle = i + self.past
        return self.values[i:middle], self.values[middle : middle + self.ahead]
for past, future in DataLoader(Windows(torch.arange(12.0)), batch_size=8):
    pass
""",
        ["`Windows.__len__`", "- self.ahead + 1"],
    ),
    "meta_weights": (
        """
state = nn.Linear(2, 2).state_dict()
with torch.device("meta"):
    model = nn.Linear(2, 2)
import warnings
warnings.simplefilter("ignore")
model.load_state_dict(state)
model(torch.zeros(1, 2))
""",
        ["meta", "assign=True"],
    ),
    "modules_in_a_list": (
        """
class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)
class Committee(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = [Expert() for _ in range(3)]
torch.optim.SGD(Committee().parameters(), lr=0.1)
""",
        ["`self.experts`", "plain Python list", "nn.ModuleList"],
    ),
    "gradient_of_a_result": (
        """
noise = torch.rand(3).requires_grad_(True) * 0.1
noise.sum().backward()
step = noise.grad.sign()
""",
        ["result of an operation", "requires_grad_()"],
    ),
    "split_by_rounding": (
        """
from torch.utils.data import random_split
data = TensorDataset(torch.zeros(11))
random_split(data, [int(0.8 * len(data)), int(0.2 * len(data))])
""",
        ["rounding", "[0.8, 0.2]"],
    ),
    "conv1d_channels_last": (
        """
speech = torch.randn(4, 100, 26)
nn.Conv1d(26, 8, 3)(speech)
""",
        ["26 channels stand in axis 2", "speech.transpose(1, 2)"],
    ),
    "conv3d_time_before_channels": (
        """
clips = torch.randn(2, 16, 3, 32, 32)
nn.Conv3d(3, 8, 3)(clips)
""",
        ["clips.transpose(1, 2)", "depth, height, width"],
    ),
    "grayscale_batch_without_channels": (
        """
digits = torch.rand(32, 28, 28)
nn.Conv2d(1, 8, 3)(digits)
""",
        ["channel axis is missing", "digits.unsqueeze(1)", "(32, 1, 28, 28)"],
    ),
    "linear_channels_first": (
        """
states = torch.randn(8, 64, 50)
nn.Linear(64, 10)(states)
""",
        ["64 features stand in axis 1", "states.transpose(1, 2)"],
    ),
    "latent_vector": (
        """
latent = torch.randn(8, 64)
nn.Sequential(nn.ConvTranspose2d(64, 16, 4), nn.ReLU())(latent)
""",
        ["latent[:, :, None, None]", "torch.randn(8, 64, 1, 1)", "height and width"],
    ),
    "flattened_digits": (
        """
pixels = torch.rand(16, 784)
nn.Conv2d(1, 8, 3)(pixels)
""",
        ["1 x 28 x 28", "pixels.view(-1, 1, 28, 28)"],
    ),
    "heads_of_attention": (
        """
n_heads = 5
def split(x):
    b, t, d = x.shape
    return x.view(b, t, n_heads, d // n_heads)
split(torch.randn(2, 7, 32))
""",
        ["32 is not divisible by 5", "4 or 8", "`n_heads` is set to 5"],
    ),
    "attention_layer_heads": (
        """
nn.MultiheadAttention(100, 8)
""",
        ["100 is not divisible by 8", "5 or 10", "96 or 104"],
    ),
    "token_scores": (
        """
logits = torch.randn(3, 9, 17)
labels = torch.randint(0, 17, (3, 9))
F.cross_entropy(logits, labels)
""",
        ["17 classes in the last axis", "logits.transpose(1, 2)", "logits.reshape(-1, 17)", "labels.reshape(-1)"],
    ),
    "pixel_scores_channels_last": (
        """
maps = torch.randn(2, 8, 8, 5)
mask = torch.randint(0, 5, (2, 8, 8))
F.cross_entropy(maps, mask)
""",
        ["maps.permute(0, 3, 1, 2)", "axis 1"],
    ),
    "mask_larger_than_the_map": (
        """
maps = torch.randn(2, 5, 8, 8)
mask = torch.randint(0, 5, (2, 16, 16))
F.cross_entropy(maps, mask)
""",
        ["F.interpolate(maps, size=mask.shape[-2:]", "(8, 8)", "(16, 16)"],
    ),
    "labels_shifted_twice": (
        """
scores = torch.randn(4, 3)
labels = torch.tensor([0, 1, 2, 0])
F.cross_entropy(scores, labels - 1)
""",
        ["`labels - 1`", "Remove the subtraction"],
    ),
    "gather_flat_actions": (
        """
q = torch.randn(6, 3)
chosen = torch.randint(0, 3, (6,))
q.gather(1, chosen)
""",
        ["`q` ((6, 3)", "`chosen` is (6,)", "chosen.unsqueeze(1)", ".squeeze(1)"],
    ),
    "load_state_dict_returns_a_report": (
        """
net = nn.Linear(2, 2)
net = net.load_state_dict(net.state_dict())
net(torch.rand(1, 2))
""",
        ["report of missing and unexpected keys", "`net.load_state_dict(net.state_dict())`"],
    ),
    "maximum_with_an_axis": (
        """
scores = torch.randn(4, 5)
best = torch.max(scores, dim=1)
best.float()
""",
        ["(values, indices)", "best.values", "torch.max(scores, dim=1)"],
    ),
    "sequential_with_a_gru": (
        """
nn.Sequential(nn.GRU(4, 8, batch_first=True), nn.Linear(8, 2))(torch.randn(3, 5, 4))
""",
        ["`0` (GRU)", "(output, h_n)", "`1` (Linear)"],
    ),
    "batch_of_a_loader_is_a_list": (
        """
model = nn.Linear(4, 2)
loader = DataLoader(TensorDataset(torch.randn(8, 4), torch.zeros(8)), batch_size=4)
for batch in loader:
    model(batch)
""",
        ["whole batch", "images, targets = batch", "batch[0]"],
    ),
    "list_after_sort": (
        """
losses = [0.3, 0.1]
ranking = losses.sort()
print(ranking[0])
""",
        ["`losses` in place and returns None", "losses.sort()"],
    ),
    "iterator_of_a_short_loader": (
        """
few = DataLoader(TensorDataset(torch.zeros(6)), batch_size=2)
many = DataLoader(TensorDataset(torch.zeros(20)), batch_size=2)
source = iter(few)
for batch in many:
    next(source)
""",
        ["`few` has only 3 batches", "`many` (10 batches)", "source = iter(few)", "cycle"],
    ),
    "generator_read_twice": (
        """
numbers = (n for n in range(2))
total = sum(numbers)
next(numbers)
""",
        ["can be read only once", "`total = sum(numbers)`", "numbers = [n for n in range(2)]"],
    ),
    "bfloat16_to_numpy": (
        """
x = torch.ones(2, dtype=torch.bfloat16)
x.numpy()
""",
        ["numpy does not have", "x.float().numpy()"],
    ),
    "float64_statistics": (
        """
MEAN = np.array([0.5, 0.5])
class Points(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, i):
        p = np.ones(2, np.float32) - MEAN
        return torch.from_numpy(p)
model = nn.Linear(2, 1)
for batch in DataLoader(Points()):
    model(batch)
""",
        ["`MEAN`", "np.array([0.5, 0.5])", "astype(np.float32)"],
    ),
    "text_column": (
        """
import pandas as pd
table = pd.DataFrame({"size": [1.0, 2.0], "colour": ["red", "blue"], "sold": [True, False]})
torch.tensor(table.values)
""",
        ["`colour`", "get_dummies(table, columns=['colour']", "`sold`"],
    ),
    "optimizer_after_unfreezing": (
        """
net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
for p in net[0].parameters():
    p.requires_grad = False
saved = torch.optim.Adam([p for p in net.parameters() if p.requires_grad]).state_dict()
optimizer = torch.optim.Adam(net.parameters())
optimizer.load_state_dict(saved)
""",
        ["holds 4 parameter tensors", "2", "`p.requires_grad = False`"],
    ),
    "scheduler_resumed_without_optimizer": (
        """
net = nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
torch.optim.lr_scheduler.StepLR(optimizer, 10, last_epoch=4)
""",
        ["initial_lr", "`last_epoch=4`", "is new", "optimizer.state_dict()"],
    ),
    "functional_alias_overwritten": (
        """
def forward(x):
    return F.relu(x)
N, F, T = 4, 5, 6
forward(torch.ones(2))
""",
        ["`torch.nn.functional`", "`N, F, T = 4, 5, 6`", "another name"],
    ),
}
# name -> (program, words that would be wrong): facts that look alike and do not support the usual explanation.
FALSE_FRIENDS: dict[str, tuple[str, list[str]]] = {
    "a_key_that_is_no_typing_error": (
        """
history = {"train_loss": [], "val_loss": []}
history["val_acc"].append(0.5)
""",
        ["Use 'val_loss'", "Use 'train_loss'"],
    ),
    "an_output_that_is_only_stored": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.seen = nn.Linear(4, 4), None
    def forward(self, x):
        self.seen = self.a(x)
        return self.seen.relu()

net = Net()
features = net(torch.rand(5, 4))
for k in range(3):
    (features * k).sum().backward()
""",
        ["keeps the state"],
    ),
    "rows_that_are_no_single_image": (
        """
eye, net = nn.Conv2d(1, 4, 3), nn.Sequential(nn.Linear(36, 2))
net(torch.rand(4, 9))
""",
        ["batch axis"],
    ),
    "a_squeeze_of_the_labels": (
        """
net, labels = nn.Linear(6, 3), torch.randint(0, 3, (5, 1)).squeeze()
for row, label in zip(torch.rand(5, 6), labels):
    F.cross_entropy(net(row), label[None]).backward()
""",
        ["removes every axis"],
    ),
    "an_array_that_was_never_converted": (
        """
class Blend(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.a = torch.from_numpy(np.ones(3)), nn.Linear(4, 3)
    def forward(self, x):
        return self.a(x) @ self.mix

Blend()(torch.rand(5, 4))
""",
        ["register_buffer", "buffers"],
    ),
    "one_row_is_a_batch_of_one": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(10, 2)
    def forward(self, x):
        positions = x.mean(0).flatten()
        return self.fc(x)
Net()(torch.rand(30))
""",
        ["whole batch", "batch axis"],
    ),
    "a_flattening_that_keeps_the_batch": (
        """
head = nn.Linear(50, 2)
features = torch.rand(1, 6, 10).flatten(1)
head(features)
""",
        ["whole batch", "batch axis"],
    ),
    "rows_that_are_no_map": (
        """
score = torch.rand(32)
nn.BCEWithLogitsLoss()(score, torch.ones(20))
""",
        ["values for each of"],
    ),
    "a_sum_elsewhere_is_no_offset_of_ids": (
        """
words = ["a", "b", "c"]
for epoch in range(1):
    shown = epoch + 1
class Text(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.emb = nn.Embedding(size, 4)
    def forward(self, x):
        return self.emb(x)
Text(len(words))(torch.tensor([3]))
""",
        ["epoch + 1", "the ids start at"],
    ),
    "a_hidden_layer_is_not_the_number_of_classes": (
        """
hidden = nn.Linear(4, 128)
scores = torch.randn(2, 3)
F.cross_entropy(scores, torch.tensor([0, 5]))
""",
        ["128"],
    ),
}
