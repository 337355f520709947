"""Generic resources as --gres and the configuration write them."""

from __future__ import annotations

import pytest

from spur.gres import DeviceFile, Gres, parse, parse_files, parse_list, total


@pytest.mark.parametrize(
    ("text", "gres"),
    [
        ("gpu", Gres("gpu", "", 1)),
        ("gpu:4", Gres("gpu", "", 4)),
        ("gpu:a100:2", Gres("gpu", "a100", 2)),
        ("gpu:a100", Gres("gpu", "a100", 1)),
        ("gpu:0", Gres("gpu", "", 0)),
    ],
)
def test_reads_name_type_and_count(text: str, gres: Gres) -> None:
    assert parse(text) == gres


@pytest.mark.parametrize(
    "text", ["", ":1", "gpu:", "gpu:-1", "gpu:1.5", "gpu:a:b:1", "4", "gpu:1:2", "gpu 1", "gpu:70000"]
)
def test_refuses_another_form(text: str) -> None:
    with pytest.raises(ValueError, match=r"is \""):
        parse(text)


def test_prints_what_it_reads() -> None:
    assert [str(parse(text)) for text in ("gpu:4", "gpu:a100:2", "gpu")] == ["gpu:4", "gpu:a100:2", "gpu:1"]


def test_reads_a_list_and_adds_up_what_is_of_one_kind() -> None:
    asked = parse_list("gpu:2,gpu:a100:1,license,gpu:1")
    assert total(asked) == (Gres("gpu", "", 3), Gres("gpu", "a100", 1), Gres("license", "", 1))
    assert parse_list("none") == parse_list("") == ()


def test_each_file_is_one_device() -> None:
    assert parse_files("a100:/dev/nvidia[0-1]") == (
        DeviceFile("a100", "/dev/nvidia0"),
        DeviceFile("a100", "/dev/nvidia1"),
    )
    assert parse_files("/tmp/gpu") == (DeviceFile("", "/tmp/gpu"),)
    for text in ("nvidia0", "a:b:/dev/x", "/dev/x[1"):
        with pytest.raises(ValueError, match=r"is \""):
            parse_files(text)
