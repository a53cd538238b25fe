"""What must not stand in a report, and what may."""

import base64
import random
import time

import pytest

from ocrlab import redaction
from ocrlab.redaction.text_spans import replace_spans


def test_secrets_of_the_environment_and_of_addresses_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    monkeypatch.setenv("PWD", "/tmp/somewhere")
    assert redaction.clean("/tmp/somewhere/runs") == "/tmp/somewhere/runs"
    text = redaction.clean("got 0123456789abcdef from https://me:pass@example.org/x")
    assert text == "got (WANDB_API_KEY) from https://(secret)@example.org/x"


def test_values_inside_others_are_cleaned_and_numbers_stay() -> None:
    value = {"api_key": "xyz", "list": ["a://u:p@h", 3], "n": 1.5, "none": None}
    assert redaction.clean(value) == {"api_key": "(secret)", "list": ["a://(secret)@h", 3], "n": 1.5, "none": None}


SECRET = "Qq7-hunter2xyz"


@pytest.mark.parametrize(
    "text",
    [
        f"API_KEY={SECRET}", f"wandb_api_key: {SECRET}", f'{{"hf_token": "{SECRET}", "n": 1}}',
        f'{{\\"token\\": \\"{SECRET}\\"}}', f"Config(n=1, api_key='{SECRET}', m=2)",
        f"python train.py --api-key {SECRET} --lr 1e-3", f"python train.py --password={SECRET}",
        f"ocrlab run mine.ipynb -p api_key {SECRET}", f"['--api-key', '{SECRET}']",
        f"INFO: token={SECRET}", f"GET /x?access_token={SECRET}&n=1",
        f'os.environ["HF_TOKEN"] = "{SECRET}"', f'api_key: str = "{SECRET}"', f"dbPassword = {SECRET}",
        f"Authorization: Bearer {SECRET}", f'"Authorization": "Basic {SECRET}"',
        f"proxy-authorization: {SECRET}", "WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567",
        "password: 12345678",
    ],
)  # fmt: skip
def test_what_stands_after_the_name_of_a_secret_is_replaced(text: str) -> None:
    cleaned = redaction.clean(text)
    assert "(secret)" in cleaned and "hunter2" not in cleaned and "45678" not in cleaned and "cdef" not in cleaned
    assert redaction.clean(cleaned) == cleaned
    assert len(cleaned) > len("(secret)") + 5, "the name and what follows stay"


def test_the_words_of_a_command_line_are_cleaned_together() -> None:
    words = f"python t.py --api-key {SECRET} -p hf_token {SECRET} --lr 5 --token={SECRET}"
    assert redaction.clean(words.split()) == words.replace(SECRET, "(secret)").split()


def test_all_of_a_long_value_is_replaced() -> None:
    assert redaction.clean(f"invalid API key {'aB3' * 300}, said it") == "invalid API key (secret), said it"


@pytest.mark.parametrize(
    "piece",
    [
        *(
            "epoch 1 step=12 loss=0.5 file.py:12\n", "a.", "a-", 'token="', 'token=\\"', "token=a(,",
            "eyJaaaaaaa.", "\\",
        ),
        *(" ", "a://b:", "-----BEGIN PRIVATE KEY-----", "bearer ", "--password "),
        *(
            "eyJ", "key=", "api key ", "a@b.c.", "://hook/hooks/a1A/", "n1:2:3 [0] NCCL INFO ", "\\u0061",
            "uid=1(a", "%25",
        ),
    ],
)  # fmt: skip
def test_the_time_grows_with_the_length_only(piece: str) -> None:
    def seconds(length: int) -> float:
        text = piece * (length // len(piece))
        began = time.process_time()
        redaction.clean(text)
        return time.process_time() - began

    assert seconds(200_000) < 40 * seconds(25_000) + 0.25  # in proportion it is 8 times, in the square 64


def test_codes_are_taken_out_and_put_back_where_they_were() -> None:
    def find(text: str) -> list[tuple[int, int, str]]:
        at = text.find("secret")
        return [(at, at + 6, "(x)")] if at >= 0 else []

    text = "\x1b[1ma\x1b[0m sec\x1b[31mret\x1b[0m b\x1b[2mc"
    assert replace_spans(text, [find]) == ("\x1b[1ma\x1b[0m (x)\x1b[31m\x1b[0m b\x1b[2mc", 1)
    assert replace_spans("\x1b[1mplain\x1b[0m", [find]) == ("\x1b[1mplain\x1b[0m", 0)


def test_characters_that_json_escapes_are_looked_at_and_stay_as_they_were_spelled() -> None:
    def find(text: str) -> list[tuple[int, int, str]]:
        at = text.find("a+b")
        return [(at, at + 3, "(x)")] if at >= 0 else []

    assert replace_spans(r"\u0061\u002Bb c\u003cd \u00e9", [find]) == (r"(x) c\u003cd \u00e9", 1)
    assert replace_spans("\u0041 \\u007f \\u0020 \\u0041\\\\u0041", [find]) == (
        "\u0041 \\u007f \\u0020 \\u0041\\\\u0041",
        0,
    )


def test_those_that_overlap_are_replaced_together() -> None:
    assert replace_spans("abcdef", [lambda _: [(1, 4, "X"), (0, 2, "Y"), (4, 5, "Z")]]) == ("YZf", 2)


def test_an_embedded_picture_stays_whole() -> None:
    data = base64.b64encode(random.Random(3).randbytes(30_000) + b"AKIA" * 40).decode()
    picture = f'<image href="data:image/png;base64,{data[:-60]}/SKaB3dK9xQ2mZ7pL4vR8tW1yN6/{data[-60:]}"/>'
    assert redaction.clean_and_count(picture) == (picture, 0)
    assert redaction.clean(f"{picture} password: hunter2x") == f"{picture} password: (secret)"
    text, count = redaction.clean_and_count(f'{{"password": "data:image/png;base64,{data}", "loss": 0.5}}')
    assert data[:200] not in text and count == 1 and '"loss": 0.5' in text
