"""Private addresses go, everybody's stay, and versions that look like addresses stay too."""

import pytest

from ocrlab import redaction


@pytest.mark.parametrize("text, expected", [
    ("connect to 10.20.30.40:29500 failed", "connect to (address):29500 failed"),
    ("MASTER_ADDR=192.168.1.7", "MASTER_ADDR=(address)"),
    ("('172.16.4.5', 29500)", "('(address)', 29500)"),
    ("http://10.0.0.5:8080/x", "http://(address):8080/x"),
    ("root@10.0.0.5:/data", "root@(address):/data"),
    ("tcp://100.64.3.2:80, 169.254.169.254.", "tcp://(address):80, (address)."),
    ("http%3A%2F%2F10.0.0.5%2Fx", "http%3A%2F%2F(address)%2Fx"),
    ("line\\n10.1.2.3\\n", "line\\n(address)\\n"),
    ("inet 192.168.0.12/24 brd 192.168.0.255", "inet (address)/24 brd (address)"),
    ("ip-10-0-3-17.ec2.internal", "(address).ec2.internal"),
    ("inet6 fe80::42:acff:fe11:2%eth0 dev", "inet6 (address) dev"),
    ("[fd12:3456:789a:1::1]:29500", "[(address)]:29500"),
    ("link/ether 02:42:ac:11:00:02 brd ff:ff:ff:ff:ff:ff", "link/ether (address) brd ff:ff:ff:ff:ff:ff"),
    ("00-1A-2B-3C-4D-5E", "(address)"),
    ("gloo connectFullMesh failed with [10.0.0.5]:12345", "gloo connectFullMesh failed with [(address)]:12345"),
    ("rank 1 on 10.0.0.6", "rank 1 on (address)"),
    ("\x1b[31m10.0.0.6\x1b[0m", "\x1b[31m(address)\x1b[0m"),
])  # fmt: skip
def test_private_addresses_are_replaced(text: str, expected: str) -> None:
    assert redaction.clean_and_count(text) == (expected, expected.count("(address)"))
    assert redaction.clean_and_count(expected) == (expected, 0)


@pytest.mark.parametrize(
    "text",
    [
        *("127.0.0.1:8888", "0.0.0.0", "8.8.8.8", "::1", "fe", "255.255.255.0", "172.15.0.1", "100.63.1.1"),
        *("nvidia-curand-cu12==10.3.5.147", "nvidia-curand-cu12        10.3.5.147", "libcurand.so.10.3.5.147"),
        *(
            '"nvidia-curand-cu12": "10.3.5.147"',
            "libcurand-10.3.5.147",
            "tensorrt 10.0.1.6",
            "TensorRT version: 10.0.1.6",
        ),
        *("tensorrt-cu12-bindings==10.13.3.9", "cublas 10.2.2.89", "CUDA driver version 10.2.89.1", "v10.1.2.3"),
        *(
            "ptxas release 10.1, V10.1.243", "10.1.2", "10.1.2.3.4", "10.1.2.300", "1.10.0.0.1",
            "0.10.1.2.3", "10.19045.1.1",
        ),
        *(
            "Driver Version: 535.104.05", "libnccl.so.2.18.3", "2026-11-22 09:57:31", "26-11-22-09-57-31",
            "0x7f10a2b3c4d5",
        ),
        *("0000:fe:00.0", "00000000:65:00.0", "12:34:56", "tensor([10, 0, 0, 1])", "loss 10.123", "shape 10.0, 0.1"),
        "MD5:16:27:ac:a5:76:28:2d:36:63:1b:56:4d:eb:df:a6:48",
        "fd01:12",
        "d41d8cd98f00b204e9800998ecf8427e",
        "GPU-fd12a4b5-1111-2222-3333-444455556666",
        "std::fd::close, feed::face",
        "package      version\nnvidia-cufft-cu12   11.2.1.3\nnvidia-curand-cu12  10.3.5.147\n",
        "    at fec0.py:12:34",
    ],
)  # fmt: skip
def test_what_only_looks_like_an_address_stays(text: str) -> None:
    assert redaction.clean(text) == text
