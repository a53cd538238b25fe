"""Short programs that fail in a library or in Python itself, each with words of the explanation; and false friends."""

from __future__ import annotations

LIBRARY_PROGRAMS: dict[str, tuple[str, list[str]]] = {
    "a_method_as_a_size": (
        "class Vocabulary:\n    def size(self):\n        return 9\nwords = Vocabulary()\nnn.Embedding(words.size, 4)\n",
        ["`words.size`", "is a method", "words.size()"],
    ),
    "a_batch_axis_at_the_end": (
        "nn.Conv2d(3, 8, 3)(torch.randn(3, 64, 64).unsqueeze(-1))\n",
        ["one image", "unsqueeze(0)"],
    ),
    "indexed_assignment_under_autocast": (
        "layer, kept = nn.Linear(4, 4), torch.zeros(6, 4)\nwith torch.autocast('cpu', dtype=torch.bfloat16):\n"
        "    kept[torch.tensor([0, 2])] = layer(torch.randn(2, 4))\n",
        ["does not convert", "`kept`", ".to(kept.dtype)"],
    ),
    "a_model_that_is_the_report_of_loading": (
        "def restore(net, state):\n    net = net.load_state_dict(state)\n    return net\n"
        "net = restore(nn.Linear(2, 2), nn.Linear(2, 2).state_dict())\nnet.eval()\n",
        ["`restore` hands on the report", "in place"],
    ),
    "tensors_of_forward_on_the_cpu": (
        "class Placed(nn.Module):\n    def forward(self, x):\n        return x + torch.arange(x.shape[1])\n"
        "Placed()(torch.zeros(2, 5, device='meta'))\n",
        ["inside of `forward` without a device", "device=x.device"],
    ),
    "a_learning_rate_that_yaml_reads_as_a_text": (
        'import yaml\ncfg = yaml.safe_load("lr: 1e-3")\ntorch.optim.AdamW(nn.Linear(2, 2).parameters(), **cfg)\n',
        ["`lr` is a text", "YAML", "1.0e-3", "float("],
    ),
    "fillna_without_its_method": (
        'import pandas as pd\npd.DataFrame({"a": [1.0, None]}).fillna(method="ffill")\n',
        ["pandas 3.0", ".ffill()"],
    ),
    "split_sizes": (
        "project = nn.Linear(64, 240)\nq, k, v = project(torch.randn(2, 64)).split([96, 96, 96], dim=-1)\n",
        ["288", "240", "`nn.Linear(64, 240)`", "chunk(3"],
    ),
    "gather_of_another_batch": (
        "scores, picked = torch.randn(8, 5), torch.randint(0, 5, (12, 1))\nscores.gather(1, picked)\n",
        ["`scores.gather(1, picked)`", "axis 0", "same batch"],
    ),
    "pixel_shuffle": ("nn.PixelShuffle(3)(torch.randn(1, 64, 4, 4))\n", ["3 x 3", "72 in place of 64"]),
    "unsorted_lengths": (
        "lengths = torch.tensor([2, 4])\n"
        "nn.utils.rnn.pack_padded_sequence(torch.randn(2, 4, 3), lengths, batch_first=True)\n",
        ["`lengths`", "enforce_sorted=False)"],
    ),
    "attention_memory": (
        "attention = nn.MultiheadAttention(32, 4, batch_first=True)\nmemory = torch.randn(5, 12, 48)\n"
        "attention(torch.randn(5, 10, 32), memory, memory)\n",
        ["32 features", "`memory` is (5, 12, 48)", "kdim=48"],
    ),
    "plateau": (
        "w = nn.Linear(2, 1)\no = torch.optim.SGD(w.parameters(), lr=1)\n"
        "scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(o)\nscheduler.step()\n",
        ["scheduler.step(val_loss)", "metric"],
    ),
    "one_cycle": (
        "w = nn.Linear(2, 1)\no = torch.optim.SGD(w.parameters(), lr=1)\n"
        "s = torch.optim.lr_scheduler.OneCycleLR(o, 1.0, total_steps=2)\n"
        "for _ in range(3):\n    o.step()\n    s.step()\n",
        ["2 steps", "total_steps=epochs * len(loader)"],
    ),
    "milestones": (
        "w = nn.Linear(2, 1)\no = torch.optim.SGD(w.parameters(), lr=1)\n"
        "torch.optim.lr_scheduler.MultiStepLR(o, milestones=30)\n",
        ["`milestones=30`", "milestones=[30]"],
    ),
    "a_module_that_stores_its_features": (
        "import copy\nclass Pool(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.score = nn.Linear(2, 1)\n    def forward(self, x):\n        w = self.score(x)\n"
        "        self.last = w\n        return w\n"
        "net = nn.Sequential(Pool())\nnet(torch.ones(1, 2))\ncopy.deepcopy(net)\n",
        ["`net.0.last`", "in `Pool.forward`", "self.last = w.detach()"],
    ),
    "a_head_that_the_network_does_not_call": (
        "import torchvision\nnet = torchvision.models.resnet18()\nnet.requires_grad_(False)\n"
        "net.classifier = nn.Linear(512, 2)\nnet.eval()(torch.rand(1, 3, 32, 32)).sum().backward()\n",
        ["never uses", "`fc`", "net.fc = nn.Linear(512, 2)"],
    ),
    "a_root_without_a_slope": (
        "def gap(a, b):\n    return ((a - b) ** 2).sum(1).sqrt()\nnet = nn.Linear(2, 2)\nx = torch.ones(3, 2)\n"
        "loss = gap(net(x), net(x)).mean()\nloss.backward()\n"
        "nn.utils.clip_grad_norm_(net.parameters(), 1.0, error_if_nonfinite=True)\n",
        ["square root is infinite at 0", "in `gap`", "+ 1e-8).sqrt()"],
    ),
    "steps_rounded_down": (
        "net, data = nn.Linear(2, 1), TensorDataset(torch.ones(50, 2))\nloader = DataLoader(data, batch_size=20)\n"
        "o = torch.optim.SGD(net.parameters(), lr=1)\n"
        "s = torch.optim.lr_scheduler.OneCycleLR(o, 1.0, epochs=2, steps_per_epoch=len(data) // 20)\n"
        "for _ in range(2):\n    for _ in loader:\n        o.step()\n        s.step()\n",
        ["yields 3 batches", "rounds down", "steps_per_epoch=len(loader)"],
    ),
    "clipped_in_each_micro_batch": (
        "w = nn.Linear(2, 1)\no = torch.optim.SGD(w.parameters(), lr=1)\nscaler = torch.amp.GradScaler('cpu')\n"
        "for i in range(4):\n    scaler.scale(w(torch.ones(1, 2)).sum()).backward()\n    scaler.unscale_(o)\n"
        "    if i % 2:\n        scaler.step(o)\n        scaler.update()\n",
        ["only if `i % 2`", "Move `scaler.unscale_(o)`"],
    ),
    "a_default_that_all_calls_share": (
        "import pandas as pd\ndef curve(n, losses=[]):\n    for i in range(n):\n        losses.append(i)\n"
        '    return pd.DataFrame({"step": range(n), "loss": losses})\ncurve(2)\ncurve(2)\n',
        ["`losses` has 4", "`losses=[]` is a default value", "losses=None"],
    ),
    "keys_renamed_in_their_loop": (
        'state = {"a.w": 1}\nfor key in state:\n    state["b" + key] = state.pop(key)\n',
        ["inside of the loop", "for key in list(state):"],
    ),
    "a_flag_that_hides_a_method": (
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.train = True\n"
        "net = Net()\nnet.train()\n",
        ["`self.train = True`", "hides the method `train`", "self.training"],
    ),
    "options_in_a_checkpoint": (
        "import argparse\ndef options():\n    return argparse.ArgumentParser().parse_args([])\nargs = options()\n"
        'torch.save({"step": 1, "args": args}, "net.pt")\ntorch.load("net.pt")\n',
        ["`args`", "under the key 'args'", "vars(args)"],
    ),
    "a_metric_of_numpy_in_a_checkpoint": (
        'best = np.mean([0.5, 0.7])\ntorch.save({"epoch": 1, "best": best}, "net.pt")\ntorch.load("net.pt")\n',
        ["`best`", "NumPy number", "`np.mean([0.5, 0.7])`", "float(best)"],
    ),
    "unscaled_twice": (
        "w = nn.Linear(2, 1)\no = torch.optim.SGD(w.parameters(), lr=1)\nscaler = torch.amp.GradScaler('cpu')\n"
        "scaler.scale(w(torch.ones(1, 2)).sum()).backward()\nscaler.unscale_(o)\nscaler.unscale_(o)\n",
        ["second time", "scaler.update()"],
    ),
    "inference_mode": (
        "w = nn.Linear(2, 2)\nwith torch.inference_mode():\n    x = w(torch.ones(1, 2))\nw(x).sum().backward()\n",
        ["torch.no_grad()", "inference_mode"],
    ),
    "data_of_two_lengths": (
        "x, y = torch.randn(100, 3), torch.randn(80)\nTensorDataset(x, y)\n",
        ["`x` is (100, 3)", "`y` is (80,)"],
    ),
    "length_misspelled": (
        "class Birds(Dataset):\n    def __len___(self):\n        return 3\n"
        "    def __getitem__(self, i):\n        return i\nDataLoader(Birds(), shuffle=True)\n",
        ["`__len___`", "Rename it to `__len__`"],
    ),
    "stream_without_length": (
        "class Stream(torch.utils.data.IterableDataset):\n    def __iter__(self):\n        yield 1\n"
        "len(DataLoader(Stream()))\n",
        ["IterableDataset", "`__len__`"],
    ),
    "class_in_a_transform": (
        "from torchvision import transforms\nt = transforms.Compose([transforms.ToTensor])\nt(np.zeros((2, 2, 3)))\n",
        ["is the class itself", "transforms.ToTensor()"],
    ),
    "keyword_of_a_library": ("nn.Conv2d(3, 8, kernel=3)\n", ["`kernel`", "kernel_size=3"]),
    "keyword_of_a_base_class": ("nn.LSTM(4, 8, layers=2)\n", ["num_layers=2"]),
    "arguments_passed_to_module": (
        "class Net(nn.Module):\n    def __init__(self, size):\n        super().__init__(size)\nNet(3)\n",
        ["`nn.Module`", "super().__init__()"],
    ),
    "name_of_a_library": ("nn.Conv2D(3, 4, 3)\n", ["`torch.nn`", "nn.Conv2d(3, 4, 3)"]),
    "head_of_another_model": (
        "import torchvision\nm = torchvision.models.vgg11(weights=None)\nm.fc = nn.Linear(m.fc.in_features, 3)\n",
        ["`classifier` (Sequential)", "`m.classifier`"],
    ),
    "size_of_a_sequential": (
        "head = nn.Sequential(nn.Dropout(), nn.Linear(8, 2))\nhead.in_features\n",
        ["head[1].in_features"],
    ),
    "key_as_an_attribute": ('config = {"lr": 1}\nconfig.lr\n', ['config["lr"]']),
    "elements_have_it": ('lines = ["a b"]\nlines.split()\n', ["1 str objects", "for part in lines"]),
    "local_and_not_stored": (
        "class Net(nn.Module):\n    def __init__(self, n):\n        super().__init__()\n        size = n\n"
        "    def forward(self, x):\n        return x.view(-1, self.size)\nNet(2)(torch.ones(2))\n",
        ["local variable of `Net.__init__`", "self.size = n"],
    ),
    "attribute_without_self": (
        "class A:\n    def __init__(self):\n        self.scale = 2\n"
        "    def run(self):\n        return scale\nA().run()\n",
        ["self.scale"],
    ),
    "local_of_another_function": ("def build():\n    model = 3\nbuild()\nmodel\n", ["`build`", "model = build(...)"]),
    "no_branch_taken": (
        "def load(kind):\n    if kind == 'train':\n        path = 'a'\n    return path\nload('test')\n",
        ["`kind == 'train'`", "`kind` is 'test'", "else"],
    ),
    "global_counter": ("step = 0\ndef train():\n    step += 1\ntrain()\n", ["global step"]),
    "path_in_place_of_a_state": ('nn.Linear(1, 1).load_state_dict("model.pt")\n', ['torch.load("model.pt")']),
    "page_in_place_of_a_checkpoint": (
        'from pathlib import Path\nPath("m.pt").write_text("<html>")\ntorch.load("m.pt")\n',
        ["web page", "Git LFS"],
    ),
    "checkpoint_cut_off": (
        'from pathlib import Path\ntorch.save(torch.zeros(999), "m.pt")\n'
        'Path("m.pt").write_bytes(Path("m.pt").read_bytes()[:900])\ntorch.load("m.pt")\n',
        ["incomplete", "os.replace"],
    ),
    "reversed_array": ("x = np.zeros((2, 2))[::-1]\ntorch.from_numpy(x)\n", ["torch.from_numpy(x.copy())", "flipped"]),
    "number_of_numpy_in_json": ('import json\njson.dumps({"loss": np.float32(1)})\n', ["float32", "float(x)"]),
    "names_of_a_folder": (
        'import os\nos.makedirs("in")\nopen("in/a.txt", "w").close()\nfor name in os.listdir("in"):\n    open(name)\n',
        ["without their folder", 'os.path.join("in", name)'],
    ),
    "assertion": ("a, b = torch.ones(4, 1), torch.ones(4)\nassert a.shape == b.shape\n", ["(4, 1)", "(4,)", "demands"]),
    "attribute_that_reads_itself": (
        "class C:\n    def __getattr__(self, name):\n        return self.values[name]\nC().lr\n",
        ["`__getattr__`", "self.__dict__"],
    ),
    "environment": ('import os\nos.environ["LOCAL_RANK"]\n', ["torchrun", "os.environ.get('LOCAL_RANK'"]),
    "process_group": ("import torch.distributed as dist\ndist.get_rank()\n", ["init_process_group"]),
    "samples_with_other_keys": (
        "class D(Dataset):\n    def __len__(self):\n        return 2\n    def __getitem__(self, i):\n"
        '        return {"a": 1, "b": 2} if i == 0 else {"a": 1}\n'
        "for batch in DataLoader(D(), batch_size=2):\n    pass\n",
        ["same keys", "`b`"],
    ),
    "list_of_numbers_multiplied": ("x = [1, 2]\nx * 0.5\n", ["`x * 0.5`", "np.array(x)"]),
    "text_and_number": ('epoch = 3\n"epoch " + epoch\n', ["str(epoch)", "f-string"]),
    "nothing_to_format": ('loss = None\nf"{loss:.3f}"\n', ["NoneType", "item()"]),
    "shape_called": ("x = torch.ones(2)\nx.shape(0)\n", ["x.shape[0]"]),
}

# The same message with another cause: words that must not be in the explanation.
LIBRARY_PROGRAMS |= {
    "state_of_another_batch_axis": (
        "rnn = nn.GRU(8, 20)\nrnn(torch.randn(5, 11, 8), torch.zeros(1, 5, 20))\n",
        ["5 time steps of a batch of 11", "nn.GRU(8, 20, batch_first=True)"],
    ),
    "mask_without_heads": (
        "layer = nn.TransformerEncoderLayer(32, 4, batch_first=True)\nm = torch.zeros(6, 15, 15, dtype=torch.bool)\n"
        "layer(torch.randn(6, 15, 32), src_mask=m)\n",
        ["6 samples x 4 heads = 24", "m.repeat_interleave(4, dim=0)"],
    ),
    "padding_as_a_mask_of_scores": (
        "att, x = nn.MultiheadAttention(32, 4, batch_first=True), torch.randn(6, 15, 32)\n"
        "pad = torch.zeros(6, 15, dtype=torch.bool)\natt(x, x, x, attn_mask=pad)\n",
        ["`pad`", "key_padding_mask=pad"],
    ),
    "mask_without_an_axis": (
        "scores, keep = torch.randn(4, 8, 12, 12), torch.ones(4, 12, 12) > 0\nscores.masked_fill(~keep, -1e9)\n",
        ["axis 1 is missing", "(~keep)[:, None, :, :]"],
    ),
    "joined_features": (
        "class Fusion(nn.Module):\n    def __init__(self, d_img=40, d_txt=24):\n        super().__init__()\n"
        "        self.txt = nn.Embedding(100, d_txt)\n        self.fuse = nn.Linear(d_img, 16)\n"
        "    def forward(self, img, word):\n        both = torch.cat([img, self.txt(word)], -1)\n"
        "        return self.fuse(both)\nFusion()(torch.randn(6, 40), torch.randint(0, 100, (6,)))\n",
        ["`self.txt(word)`", "adds 24 features that `d_img` = 40 leaves out", "nn.Linear(d_img + d_txt, 16)"],
    ),
    "head_of_the_size_of_another_layer": (
        "from torchvision import models\nm = models.resnet18(weights=None)\n"
        "m.fc = nn.Linear(m.layer4[0].conv1.in_channels, 3)\nm(torch.rand(2, 3, 64, 64))\n",
        ["another layer than the one that is replaced, `m.fc`", "`m.fc.in_features`, which is 512"],
    ),
    "hook_that_returns": (
        "def keep(module, inputs, output):\n    return output.shape\n"
        "enc = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU())\nenc[0].register_forward_hook(keep)\n"
        "enc(torch.rand(1, 1, 9, 9))\n",
        ["of `enc[0]`", "`output.shape`", "replaces the output", "no `return`"],
    ),
    "letters_of_a_transposed_weight": (
        'x, w = torch.randn(5, 7, 12), torch.randn(9, 12)\ntorch.einsum("bnd,de->bne", x, w)\n',
        ["axes 0 and 1 of `w`", '"bnd,ed->bne"'],
    ),
    "letter_of_another_axis": (
        'a, v = torch.rand(2, 3, 5), torch.rand(2, 5, 4)\ntorch.einsum("bqk,bqd->bqd", a, v)\n',
        ["Axis 1 of `v`", "labelled `k` and not `q`", '"bqk,bkd->bqd"'],
    ),
    "reduction_without_keepdim": (
        "x = torch.randn(10, 4)\nx - x.mean(dim=1)\n",
        ["`x.mean(dim=1)`", "one value for each row", "x.mean(dim=1, keepdim=True)"],
    ),
    "factor_for_each_sample": (
        "s, n, x, t = torch.rand(50), torch.rand(50), torch.rand(4, 3, 8, 8), torch.tensor([1, 2, 3, 4])\n"
        "y = s[t] * x + n[t] * x\n",
        ["`s[t]` (4,)", "each sample", "s[t][:, None, None, None] * x + n[t][:, None, None, None] * x"],
    ),
    "batch_before_time_in_ctc": (
        "logits, steps = torch.randn(4, 30, 11).log_softmax(-1), torch.full((4,), 30)\n"
        "F.ctc_loss(logits, torch.ones(4, 5).long(), steps, torch.full((4,), 5))\n",
        ["(time, batch, classes)", "logits.transpose(0, 1)"],
    ),
    "list_by_an_array": (
        'names, order = ["a", "b", "c"], np.argsort([3, 1, 2])\nprint(names[order])\n',
        ["`names` is a list", "an array of 3 indices", "[names[i] for i in order.tolist()]"],
    ),
    "raw_ids_as_classes": (
        "zips = torch.tensor([9021000000, 1000100000] * 2000)\nF.one_hot(zips)\n",
        ["9,021,000,001", "raw ids", "pd.factorize(zips)"],
    ),
    "whole_numbers_in_a_float_loss": (
        "y = torch.randint(0, 2, (8, 1))\nnn.BCEWithLogitsLoss()(nn.Linear(4, 1)(torch.rand(8, 4)), y)\n",
        ["`y` is int64", "y.float()"],
    ),
    "labels_that_are_ids": (
        "ids = torch.tensor([3, 17, 42])\nF.cross_entropy(nn.Linear(5, 3)(torch.rand(3, 5)), ids)\n",
        ["ids with gaps", "return_inverse=True"],
    ),
    "channels_for_a_shuffle": (
        "class Up(nn.Module):\n    def __init__(self, r=3, out=1):\n        super().__init__()\n"
        "        self.conv = nn.Conv2d(8, out * r, 3)\n        self.ps = nn.PixelShuffle(r)\n"
        "    def forward(self, x):\n        return self.ps(self.conv(x))\nUp()(torch.rand(1, 8, 6, 6))\n",
        ["`out * r ** 2` = 9"],
    ),
    "context_that_grows": (
        "size = 4\npos = nn.Embedding(size, 8)\ndef model(t):\n    return pos(torch.arange(t.shape[1]))\n"
        "seq = torch.zeros(1, 1)\nwhile True:\n    out = model(seq)\n    seq = torch.cat([seq, out[None, :1, 0]], 1)\n",
        ["`seq` longer in each pass", "seq[:, -size:]"],
    ),
    "image_of_another_size": (
        "critic = nn.Sequential(nn.Conv2d(1, 4, 4, stride=2, padding=1), nn.Conv2d(4, 1, kernel_size=14))\n"
        "images = torch.rand(6, 1, 32, 32)\nscores = critic(images).flatten()\n"
        "F.binary_cross_entropy_with_logits(scores, torch.ones(6))\n",
        ["3 x 3", "28 to 29 pixels", "`images` has 32 x 32"],
    ),
}
LIBRARY_FALSE_FRIENDS: dict[str, tuple[str, list[str]]] = {
    "a_target_of_literals_cuts_no_graph": (
        "net = nn.Linear(2, 2)\nnet.requires_grad_(False)\n"
        "F.cross_entropy(net(torch.ones(1, 2)), torch.tensor([1])).backward()\n",
        ["copies the value"],
    ),
    "a_head_that_was_replaced": (
        "import torchvision\nnet = torchvision.models.resnet18()\nnet.requires_grad_(False)\n"
        "net.fc = nn.Linear(512, 2)\nwith torch.no_grad():\n    out = net.eval()(torch.rand(1, 3, 32, 32))\n"
        "out.sum().backward()\n",
        ["never uses"],
    ),
    "a_state_of_a_larger_batch": (
        "rnn = nn.GRU(8, 20, batch_first=True)\nrnn(torch.randn(8, 11, 8), torch.zeros(1, 16, 20))\n",
        ["batch_first=True`, so", "without `batch_first"],
    ),
    "a_hook_that_returns_nothing": (
        "a, b, log = nn.Linear(5, 6), nn.Linear(5, 2), []\na.register_forward_hook(lambda m, i, o: log.append(o))\n"
        "h = a(torch.rand(3, 5))\nb(h)\n",
        ["hook"],
    ),
    "a_vector_that_fits_no_axis": ("a, b = torch.rand(6, 20), torch.rand(13)\na * b\n", ["None", "one value for each"]),
    "a_vector_that_fits_two_axes": ("a, b = torch.rand(3, 3, 8, 8), torch.rand(3)\na * b\n", ["Add the missing"]),
    "table_that_is_too_short_outside_of_a_loop": (
        "pos = nn.Embedding(4, 8)\nfor t in torch.rand(2, 1, 9):\n    pos(torch.arange(t.shape[1]))\n",
        ["longer in each pass"],
    ),
    "a_class_that_is_called_by_the_program": (
        "from torchvision import transforms\nkinds = [transforms.ToTensor]\ntransforms.ToTensor(3)\n",
        ["is the class itself"],
    ),
    "a_base_class_of_the_program_that_takes_arguments": (
        "class Base:\n    def __init__(self, a):\n        self.a = a\nclass Net(Base):\n    def __init__(self, a, b):\n"
        "        super().__init__(a, b)\nNet(1, 2)\n",
        ["takes none"],
    ),
    "two_single_values_of_which_one_is_meant": (
        "w = nn.Linear(2, 1)\no = torch.optim.SGD(w.parameters(), lr=1)\n"
        "torch.optim.lr_scheduler.MultiStepLR(o, 30, last_epoch=5)\n",
        ["`last_epoch=[5]`"],
    ),
    "a_local_variable_that_is_stored_later": (
        "class A:\n    def __init__(self):\n        self.load()\n        self.size = 1\n"
        "    def load(self):\n        return self.size\nA()\n",
        ["local variable"],
    ),
    "a_file_of_the_same_name_elsewhere": (
        'import os\nos.makedirs("in")\nopen("in/a", "w").close()\n'
        'for name in os.listdir("in"):\n    pass\nopen("b.txt")\n',
        ["without their folder"],
    ),
    "a_key_that_is_called_params_in_a_config": ('config = {"lr": 1}\nconfig["params"]\n', ["module.parameters()"]),
}
