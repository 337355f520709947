"""The expected names were made by sbatch of Slurm 22.05."""

import pytest

from spur.patterns import DEFAULT_STDOUT, Names, expand

NAMES = Names(job=52, job_name="n.a", user="root", node="vm")


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        (DEFAULT_STDOUT, "slurm-52.out"),
        ("%j-%J-%x-%u-%N-%n-%t-%s-%A-%a-%%-%4j.out", "52-52-n.a-root-vm-0-0-batch-52-4294967294-%-0052.out"),
        ("%5j-%15j-%0j", "00052-0000000052-52"),
        ("x%%j", "x%j"),
        ("%%%j", "%52"),
        ("%5%", "5%"),
        ("%j%", "52%"),
        ("%", "%"),
        ("%q-%-", "%q-%-"),
        ("%x%b%r", "n.a%b%r"),
        ("%3x-%5u-%3N-%3t-%3n-%3s-%4a-%3A-%4J", "n.a-root-vm-000-000-batch-4294967294-052-0052"),
        (r"\%j", "%j"),
        (r"a\%j", "a%j"),
        (r"a\\%j", r"a\%j"),
        (r"\\%j.out", r"\%j.out"),
        (r"pp/%j\\z", r"pp/%j\z"),
    ],
)
def test_a_pattern_becomes_the_name_that_slurm_gives_it(pattern: str, name: str) -> None:
    assert expand(pattern, NAMES) == name


def test_a_numbered_step_shows_in_its_letters() -> None:
    step = Names(job=7, job_name="n", user="u", node="n2", node_rank=1, task=3, step="0")
    assert expand("%J-%s-%t-%n-%N", step) == "7.0-0-3-1-n2"
