"""Persons and machines that a text itself tells of: addresses for mail, prompts, logs of several machines."""

from __future__ import annotations

import pytest

from ocrlab import redaction
from ocrlab.redaction import foreign_names


@pytest.mark.parametrize(
    "text, expected",
    [
        ("Author: Kir <kir.bran@corp.example>", "Author: Kir <(user)@(host)>"),
        ("ssh-ed25519 AAAA kbran@ws-114.corp.example", "ssh-ed25519 AAAA (user)@(host)"),
        ("(base) kbran@lambda-quad:~/x$ python train.py", "(base) (user)@(host):~/x$ python train.py"),
        ("scp a kbran@storage7:/data/b", "scp a (user)@(host):/data/b"),
        ("fatal: ssh://kbran@build-07.corp.example/a.git", "fatal: ssh://(secret)@(host)/a.git"),
        ("'kbran@cs.example.ac.uk'", "'(user)@(host)'"),
        ("/tmp/torchinductor_kbran/ab/c.py", "/tmp/torchinductor_(user)/ab/c.py"),
        ("uid=1001(kbran) gid=1001(kbran)", "uid=1001((user)) gid=1001((user))"),
    ],
)
def test_who_and_where(text: str, expected: str) -> None:
    assert redaction.clean(text) == expected
    assert redaction.counted(expected) == (expected, 0)


@pytest.mark.parametrize(
    "text",
    [
        *("git@github.com:org/repo.git", "noreply@example.com", "security@pytorch.org", "root@localhost:~#"),
        *("y = emb@table.to(device)", "out = x1@self.weight", "hmean@0.5", "user@1000.service", "memcpy@@GLIBC_2.14"),
        *("actions/checkout@v4", "icon@2x.png", "name@plt", "@torch.no_grad()", "pkg @ https://example.org/a.whl"),
        *("image@sha256:0123", "uid=0(root) gid=0(root)", "https://example.org/@kbran/x", "q1@k2.mT", "gcc@9.4.0"),
    ],
)
def test_operators_services_and_versions_stay(text: str) -> None:
    assert redaction.clean(text) == text


@pytest.mark.parametrize(
    "line",
    [
        "{}:88121:88347 [0] NCCL WARN Cuda failure",
        "[rank3]: {}:796:796 [1] NCCL INFO Bootstrap",
        "  host      : {}",
        "slurmstepd: error: *** STEP 37361369.0 ON {} CANCELLED AT 2026-11-24",
        "srun: error: {}: task 3: Killed",
    ],
)
@pytest.mark.parametrize("name", ["gpu-rack7-n04", "gpu-rack7-n04.corp.example"])
def test_machines_that_a_log_tells_of_go_everywhere_in_it(line: str, name: str) -> None:
    text = f"{line.format(name)}\nconnect to [gpu-rack7-n04]:29500, not gpu-rack7-n04b"
    assert redaction.clean(text) == f"{line.format('(host)')}\nconnect to [(host)]:29500, not gpu-rack7-n04b"


def test_the_names_of_no_machine_stay() -> None:
    for line in ("localhost:12:13 [0] NCCL INFO x", "  host      : localhost", "n1.a:12:13 [0] NCCL INFO x"):
        assert "localhost" not in list(foreign_names.machines(line)) and "n1" not in list(foreign_names.machines(line))
