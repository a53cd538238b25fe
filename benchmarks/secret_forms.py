"""58 forms of secrets and names, as logs and notebooks show them, and 51 texts that only look like one.

They were written down before the rules of `ocrlab/redaction` were read. Every value is drawn anew from the seed.

    python benchmarks/secret_forms.py --forms FORMS.jsonl --harmless HARMLESS.jsonl

counts how many secrets of other forms, each {"text", "secret"}, the redaction leaves, and how many harmless texts, each
{"text"}, it changes. `--list` prints those.
"""

from __future__ import annotations

import argparse
import base64
import html
import json
import random
import string
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from ocrlab import redaction

LETTERS = string.ascii_letters + string.digits
CAPITALS = string.ascii_uppercase + string.digits
HEX = "0123456789abcdef"


@dataclass(frozen=True)
class Form:
    """How a secret is shown: the text, what of it must not be found, and the variables of the environment it needs."""

    name: str
    shown: str
    hidden: tuple[str, ...]
    variables: tuple[tuple[str, str], ...] = ()


class Drawer:
    """Draws values from a seed."""

    def __init__(self, seed: int) -> None:
        self.source = random.Random(seed)

    def word(self, length: int, letters: str = LETTERS) -> str:
        return "".join(self.source.choices(letters, k=length))

    def base64(self, count: int) -> str:
        return base64.b64encode(self.source.randbytes(count)).decode()

    def lines(self) -> list[str]:
        """Return the lines of a private key between its first and its last."""
        return [*(self.word(64) for _ in range(4)), self.word(40) + "=="]


def forms(seed: int) -> list[Form]:
    """Return every form with fresh values."""
    draw = Drawer(seed)
    return [*_issued(draw), *_addresses(draw), *_named(draw), *_keys(draw), *_people(draw), *_environment(draw)]


def _issued(draw: Drawer) -> Iterator[Form]:
    """Yield tokens that stand alone: what their issuer puts in front, and the text around one."""
    word = draw.word
    tokens = {
        "github fine-grained": (f"github_pat_11{word(20, CAPITALS)}_{word(59)}", "remote: using {} for fetch"),
        "hugging face": (f"hf_{word(34, string.ascii_letters)}", "huggingface_hub login with {}"),
        "google": (f"AIza{word(35)}", "maps key {} rejected"),
        "google oauth": (f"GOCSPX-{word(28)}", "oauth client {}"),
        "openai": (f"sk-proj-{word(60)}", "using {}"),
        "anthropic": (f"sk-ant-api03-{word(80)}AA", "using {}"),
        "databricks": (f"dapi{word(32, HEX)}", "host adb.example.net, {}"),
        "pypi": (f"pypi-AgEIcHlwaS5vcmc{word(70)}", "twine: {}"),
        "npm": (f"npm_{word(36)}", "//registry.example.com/:_authToken={}"),
        "stripe": (f"sk_live_{word(24)}", "stripe {}"),
        "sendgrid": (f"SG.{word(22)}.{word(43)}", "mail {}"),
    }
    for name, (token, text) in tokens.items():
        yield Form(name, text.format(token), (token,))
    token = f"hf_{word(34, string.ascii_letters)}"
    yield Form("colours", f"token \x1b[32m{token[:12]}\x1b[0m\x1b[1m{token[12:]}\x1b[0m ok", (token, token[12:]))
    token = f"glpat-{word(20)}"
    yield Form("json escape", f'{{"tok": "\\u0067{token[1:]}"}}', (token, token[1:]))
    parts = [base64.urlsafe_b64encode(part).decode().rstrip("=") for part in (b'{"alg":"HS256"}', b'{"sub":"18273"}')]
    signature = word(43)
    yield Form("jwt", f"cookie was {'.'.join([*parts, signature])}; refused", (signature,))


def _addresses(draw: Drawer) -> Iterator[Form]:
    word = draw.word
    password = f"p%40ss%3A{word(8)}%2Fq"
    shown = f"clone of https://svc-bot:{password}@git.example.com/x.git failed"
    yield Form("password with percent", shown, (password, unquote(password)))
    texts = {
        "slack": (
            word(24),
            f"POST https://hooks.slack.com/services/T{word(8, CAPITALS)}/B{word(8, CAPITALS)}/{{}} 404",
        ),
        "telegram": (f"AA{word(33)}", "https://api.telegram.org/bot7381920462:{}/sendMessage"),
        "discord": (word(68), "https://discord.com/api/webhooks/1181818181818181818/{}"),
        "database": (word(14), "postgresql+psycopg2://trainer:{}@db.example.com:5432/pages?sslmode=require"),
        "shared access": (word(43), "GET https://x.blob.core.windows.net/c/a.tar?sv=2024-05-04&sp=r&sig={}%3D 403"),
        "presigned": (word(64, HEX), "GET https://b.example.com/a?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Signature={}"),
        "git https": (f"ghs_{word(36)}", "origin https://x-access-token:{}@github.com/o/r.git (fetch)"),
        "private ipv6": ("fd12:3456:789a:1::17", "connect to [{}]:29500 via fe80::a00:27ff:fe4e:66a1%eth0 failed"),
        "shared ipv4": ("100.101.102.103", "rendezvous endpoint {}:29400 not reachable"),
    }
    for name, (value, text) in texts.items():
        yield Form(name, text.format(value), (value,))


def _named(draw: Drawer) -> Iterator[Form]:
    """Yield values after a name, in the spellings of configurations, commands, headers and reprs."""
    word = draw.word
    session, key = f"FwoGZXIvYXdzE{draw.base64(90)}", f"ASIA{word(16, CAPITALS)}"
    yield Form("aws session", f"aws_access_key_id={key} aws_session_token={session}", (session[:40], key))
    secret = word(18)
    encoded = base64.b64encode(f"svcbot:{secret}".encode()).decode()
    yield Form("basic", f"Authorization: Basic {encoded}", (encoded, secret))
    texts = {
        "netrc": (word(40, HEX), "machine api.wandb.ai login user password {}"),
        "ado": (f"{word(14)}!x", "Server=tcp:sql.example.com,1433;User ID=sa;Password={};Encrypt=True;"),
        "storage": (draw.base64(64), "DefaultEndpointsProtocol=https;AccountKey={};EndpointSuffix=x"),
        "bearer": (word(43), "curl -H 'Authorization: Bearer {}' failed"),
        "option": (word(16), "+ train.py --lr 0.1 --db-password {} --epochs 3"),
        "dict": (word(20), "cfg = {{'lr': 0.1, 'api_key': '{}', 'epochs': 3}}"),
        "dataclass": (word(20), "TrackerConfig(project='pages', auth_token='{}', offline=False)"),
        "yaml": (word(20), "  client_secret: {}"),
        "toml": (word(20), 'secret_key = "{}"'),
        "docker": (draw.base64(30), '{{"auths": {{"registry.example.com": {{"auth": "{}"}}}}}}'),
        "cookie": (word(32, HEX), "Set-Cookie: sessionid={}; HttpOnly"),
        "header": (word(36), "request headers: X-Api-Key: {}"),
    }
    for name, (value, text) in texts.items():
        yield Form(name, text.format(value), (value,))


def _keys(draw: Drawer) -> Iterator[Form]:
    for name, kind in (("pem", "RSA PRIVATE KEY"), ("pem in json", "OPENSSH PRIVATE KEY")):
        lines = draw.lines()
        text = "\n".join([f"-----BEGIN {kind}-----", *lines, f"-----END {kind}-----"])
        yield Form(name, json.dumps({"key_material": text}) if "json" in name else text, tuple(lines))


def _people(draw: Drawer) -> Iterator[Form]:
    """Yield persons and machines that only the text knows."""
    home = "/ho" + "me/"
    texts = {
        "user on windows": ("FileNotFoundError: C:\\Users\\{}\\pages\\a.jpg", ""),
        "user on wsl": ("OSError: /mnt/c/Us" + "ers/{}/pages/a.jpg cannot be read", ""),
        "user's home": (f"ImportError: {home}{{}}/.venv/lib/python3.11/site-packages/x.so", ""),
        "ssh remote": ("fatal: ssh://{}@{}/srv/git/pages.git: Could not read from remote", "build-07.corp.example"),
        "comment of a key": ("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJx0vq9 {}@{}", "ws-114.corp.example"),
        "mail": ("Author: Kirsten <kirsten.{}@{}>", "corp.example"),
    }
    for name, (text, host) in texts.items():
        user = draw.word(9, string.ascii_lowercase)
        yield Form(name, text.format(user, host), (user, host) if host else (user,))
    text = "{}:88121:88347 [0] NCCL WARN Cuda failure 'an illegal memory access was encountered'"
    host = f"gpu-rack7-{draw.word(4, string.ascii_lowercase)}"
    yield Form("host in nccl", text.format(host), (host,))


def _environment(draw: Drawer) -> Iterator[Form]:
    """Yield values of secret variables of the environment, in what programs make of them."""
    word = draw.word
    texts = {
        "MY_DB_PASSWORD": (f'q"7\\{word(10)}<&>{word(4)}', lambda value: json.dumps({"v": value})),
        "S3_SECRET": (f"p@{word(8)}/w:{word(5)}+=", lambda value: "x=" + quote(value, safe="")),
        "TRACKER_API_KEY": (word(22), lambda value: f"--header=X:pre{value}post"),
        "REGISTRY_TOKEN": (word(21), lambda value: "b64 " + base64.b64encode(value.encode()).decode()),
        "WEB_SECRET": (f"&<{word(12)}'\"", lambda value: f"<b>{html.escape(value)}</b>"),
        "SIGNING_KEY": (word(24), lambda value: repr(value.encode())),
        "HUB_TOKEN": (word(24), lambda value: f"\x1b[31m{value[:9]}\x1b[39m{value[9:]}"),
        "LONG_TOKEN": (word(50), lambda value: f"│ {value[:25]} │\n│ {value[25:]} │"),
        "VAULT_PASSPHRASE": (f"correct horse {word(6)}", lambda value: f"unlock with {value}!"),
        "CI_JOB_TOKEN": (word(30), lambda value: f"upper {value.upper()}"),
    }
    for name, (value, show) in texts.items():
        shown = show(value)
        encoded = shown[4:-3] if "b64" in shown else quote(value, safe="")
        parts = {value, value[25:], value[:25], value.upper(), encoded}
        yield Form(name, shown, tuple(sorted(part for part in parts if len(part) > 5)), ((name, value),))
    password = word(12)
    variable = ("DATABASE_URL", f"mysql://tr:{password}@db.example.com/p")
    yield Form("DATABASE_URL", f"password {password} wrong", (password,), (variable,))


INNOCENT = (
    *(
        "sha256 " + "9f86d081884c7d65" * 4,
        "commit 31c1010c0f0f1c5a3a2a0b5c9d3f6e7a8b9c0d1e",
        "torch 2.15.0+cu130 numpy 2.3.1",
    ),
    *("token limit exceeded", "secret sauce", "key error: 'boxes'", "password policy", "the data root is data/train"),
    *("id d41d8cd98f00b204e9800998ecf8427e", "uuid GPU-3f1c2b8a-9d7e-4c55-8a11-0b5d2e6f7a91", "127.0.0.1:29500"),
    *("0x7f3c2a1b4d60", "version 10.1.2.4 of libcublas", "num_tokens=4096", "tokenizer=bpe", "max_tokens: 512"),
    *("key='decoder.fusion.weight'", "KeyError: 'epoch'", "tok/s 123.4", "pad_token: '<pad>'", "sort key: area"),
    *('missing key(s) in state_dict: "head.prob.weight"', "torch.nn.functional.attention(query, key, value)"),
    *("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "2026-11-24T12:02:23", "time 12:02:23", "a::b::c at::native::cpu"),
    *("c10::Error", "std::bad_alloc", "::Tensor", "dead::beef", "user@localhost? no", "data: root", "monkey: 5"),
    *("keys: lr, wd", "hf_hub_download(repo)", "sk-learn", "AKIA is a prefix", "pass: 3 of 5", "eyJust"),
    *("auth_token=None", "password=''", "api_key=os.environ['X']", "token=<unset>", "cuda:0", "git@v1.2"),
    *(
        "best-epoch=12-hmean=0.962.ckpt",
        "receipts.ckpt sha256:" + "2c26b46b68ffc68f" * 4,
        "1e-05",
        "[rank0]: Traceback",
    ),
    "3.11.9 (main, Jun  1 2026) [GCC 12.2.0]",
)


def main() -> int:
    """Print both numbers; end with 1 unless both are 0."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--forms", type=Path, required=True, help='JSON lines {"text", "secret"}')
    options.add_argument("--harmless", type=Path, required=True, help='JSON lines {"text"}')
    options.add_argument("--list", action="store_true", help="also print what remains and what was changed")
    args = options.parse_args()
    secrets, harmless = (read_lines(path) for path in (args.forms, args.harmless))
    remaining = [(row["text"], text) for row in secrets if row["secret"] in (text := redaction.clean(row["text"]))]
    changed = [(row["text"], text) for row in harmless if (text := redaction.clean(row["text"])) != row["text"]]
    print(f"secrets that remain: {len(remaining)} of {len(secrets)}")
    print(f"harmless texts changed: {len(changed)} of {len(harmless)}")
    for before, after in [*remaining, *changed] if args.list else ():
        print(f"\n{before}\n->\n{after}")
    return int(bool(remaining or changed))


def read_lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


if __name__ == "__main__":
    sys.exit(main())
