"""The configuration: what it takes, and the one line with which it refuses everything else."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spur import times
from spur.config import (
    ARRAYS,
    TABLES,
    AuthPlugin,
    CgroupUse,
    Config,
    ConfigError,
    PartitionState,
    default_path,
    load,
    parse,
    refuse_open_address,
)
from spur.example import example
from spur.gres import DeviceFile, Gres
from spur.tables import options_of

FILE = Path("/etc/spur/spur.toml")
SITE = """
cluster_name = "lab"

[controller]
listen = "127.0.0.1:6817"
state_dir = "/var/lib/spur/spurctld"
heartbeat_timeout_secs = 90

[agent]
controller = ["127.0.0.1:6817"]
listen = "0.0.0.0:6818"
state_dir = "/var/lib/spur/spurd"
runtime_dir = "/run/spur"
heartbeat_interval_secs = 10
cgroup = "required"

[auth]
plugin = "token"
key_file = "/etc/spur/auth.key"

[hooks]
prolog = "/etc/spur/prolog"

[[nodes]]
names = "n[1-3]"
cpus = 64
memory_mb = 20000
gres = ["gpu:a100:2", "license"]
gpu_files = ["a100:/dev/nvidia[0-1]"]

[[nodes]]
names = "login"

[[partitions]]
name = "main"
nodes = "ALL"
default = true
state = "UP"
default_time = "1:00:00"
max_time = "UNLIMITED"

[[partitions]]
name = "short"
nodes = "n[1-2]"
state = "DRAIN"
max_time = 30
"""


def test_reads_the_configuration_of_a_site() -> None:
    config = parse(SITE, FILE)
    assert config.cluster_name == "lab"
    assert config.path == FILE
    assert config.agent.cgroup is CgroupUse.REQUIRED
    assert config.hooks.prolog == Path("/etc/spur/prolog")
    assert config.hooks.epilog is None
    assert [node.name for node in config.nodes] == ["n1", "n2", "n3", "login"]
    main, short = config.partitions
    assert (main.all_nodes, main.default_time, main.max_time) == (True, 3600, times.UNLIMITED)
    assert (short.nodes, short.state, short.max_time) == (("n1", "n2"), PartitionState.DRAIN, 1800)


def test_a_node_declares_its_resources_or_leaves_them_to_be_measured() -> None:
    config = parse(SITE, FILE)
    declared, bare = config.node("n2"), config.node("login")
    assert declared is not None and bare is not None
    assert declared.gres == (Gres("gpu", "a100", 2), Gres("license", "", 1))
    assert declared.gpus == (DeviceFile("a100", "/dev/nvidia0"), DeviceFile("a100", "/dev/nvidia1"))
    assert (bare.cpus, bare.memory_mb, bare.gres, bare.gpus) == (None, None, None, ())
    assert config.node("other") is None


def test_without_nodes_any_node_may_register() -> None:
    config = parse("", FILE)
    assert config.any_node
    node = config.node("anybody")
    assert node is not None and node.name == "anybody"
    assert [partition.name for partition in config.partitions if partition.default] == ["main"]


def test_what_is_not_said_has_the_default_of_the_table() -> None:
    assert parse("", FILE) == Config(path=FILE)


REFUSED = [
    ("[agent]\nheartbeat_intervall_secs = 1", "[agent] heartbeat_intervall_secs is no known key (did you mean heartbeat_interval_secs?)"),
    ("[agnt]\nx = 1", "agnt is no known key or table (did you mean agent?)"),
    ("zzz = 1", "zzz is no known key or table"),
    ("cluster_name = 1", "cluster_name is 1, not a string"),
    ('cluster_name = "a b"', 'cluster_name is "a b", not a name of letters, digits, _, - and .'),
    ("agent = 3", "[agent] is not a table"),
    ("nodes = 3", "nodes is written as [[nodes]], one for each entry"),
    ('[nodes]\nnames = "a"', "nodes is written as [[nodes]], one for each entry"),
    ('[controller]\nlisten = "x"', '[controller] listen is "x", not HOST:PORT'),
    ('[controller]\nlisten = "x:99999"', '[controller] listen is "x:99999", not HOST:PORT'),
    ('[controller]\nlisten = "::1:5"', '[controller] listen is "::1:5": an IPv6 address is written [ADDRESS]:PORT'),
    ('[controller]\nstate_dir = "var"', '[controller] state_dir is "var", not an absolute path'),
    ("[controller]\nheartbeat_timeout_secs = 0", "[controller] heartbeat_timeout_secs is 0, not a number from 0.2 to 86400"),
    ("[controller]\nheartbeat_timeout_secs = true", "[controller] heartbeat_timeout_secs is true, not a number from 0.2 to 86400"),
    ("[controller]\nheartbeat_timeout_secs = nan", "[controller] heartbeat_timeout_secs is nan, not a number from 0.2 to 86400"),
    ("[controller]\nheartbeat_timeout_secs = 5", "[agent] heartbeat_interval_secs is 10, not less than [controller] heartbeat_timeout_secs, 5"),
    ("[agent]\ncontroller = []", "[agent] controller is empty"),
    ('[agent]\ncgroup = "yes"', '[agent] cgroup is "yes", not "auto" or "required" or "none"'),
    ("[agent]\nconstrain_cpus = 1", "[agent] constrain_cpus is 1, not true or false"),
    ('[auth]\nplugin = "none"', '[auth] plugin "none" needs loopback addresses, [agent] listen is "0.0.0.0:6818"'),
    ("[job]\nkill_wait_secs = -1", "[job] kill_wait_secs is -1, not a number from 0 to 65535"),
    ('[hooks]\nprolog = ""', '[hooks] prolog is "", not an absolute path'),
    ("[limits]\nfirst_job_id = 9\nmax_job_id = 8", "[limits] first_job_id is more than max_job_id"),
    ("[[nodes]]\ncpus = 1", "[[nodes]] 1 names is missing"),
    ('[[nodes]]\nnames = ""', "[[nodes]] 1 names is empty"),
    ('[[nodes]]\nnames = "n[1-99999999]"', "[[nodes]] 1 names is \"n[1-99999999]\": Too many hosts in range '1-99999999'"),
    ('[[nodes]]\nnames = "n[1-2]"\n[[nodes]]\nnames = "n2"', "[[nodes]] has n2 twice"),
    ('[[nodes]]\nnames = "a"\ngres = ["gpu:x:y:z"]', '[[nodes]] 1 gres is "gpu:x:y:z", not NAME[:TYPE][:COUNT]'),
    ('[[nodes]]\nnames = "a"\ngpu_files = ["dev"]', '[[nodes]] 1 gpu_files is "dev", not [TYPE:]/PATH'),
    ('[[nodes]]\nnames = "a"\ngpu_files = ["/d0", "/d0"]', "[[nodes]] 1 gpu_files has /d0 twice"),
    ('[[nodes]]\nnames = "a"\ngres = ["gpu:3"]\ngpu_files = ["/d[0-1]"]', "[[nodes]] 1 gres counts other GPUs than gpu_files lists"),
    ('[[partitions]]\nname = "p"\n[[partitions]]\nname = "p"', "[[partitions]] has p twice"),
    ('[[nodes]]\nnames = "a"\n[[partitions]]\nname = "p"\nnodes = "b"', "[[partitions]] p nodes: b is in no [[nodes]]"),
    ('[[partitions]]\nname = "p"\nnodes = "a,a"', "[[partitions]] p nodes has a twice"),
    ('[[partitions]]\nname = "p"\nstate = "up"', '[[partitions]] 1 state is "up", not "UP" or "DOWN" or "DRAIN" or "INACTIVE"'),
    ('[[partitions]]\nname = "p"\ndefault_time = 0', '[[partitions]] 1 default_time is "0": say "UNLIMITED", or leave it out'),
    ('[[partitions]]\nname = "p"\ndefault_time = "0:00"', '[[partitions]] 1 default_time is "0:00": say "UNLIMITED", or leave it out'),
    ('[[partitions]]\nname = "p"\nmax_time = "1h"', "[[partitions]] 1 max_time is \"1h\": '1h' is no time limit: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S or UNLIMITED"),
    ('[[partitions]]\nname = "p"\nmax_time = "99999-0"', "[[partitions]] 1 max_time is \"99999-0\": time limit '99999-0' is more than 49710-06:28:14"),
    ('[[partitions]]\nname = "p"\ndefault_time = "2:0:0"\nmax_time = 60', "[[partitions]] p default_time is 02:00:00, longer than max_time, 01:00:00"),
    ('[[partitions]]\nname = "p"\ndefault = true\n[[partitions]]\nname = "q"\ndefault = true', "[[partitions]] default is true for p and for q"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line"), REFUSED)
def test_refuses_by_name_in_one_line(text: str, line: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse(text, FILE)
    assert str(refusal.value) == f"{FILE}: {line}"


def test_a_syntax_error_names_file_and_line() -> None:
    with pytest.raises(ConfigError, match=r"^/etc/spur/spur.toml: .*line 2"):
        parse("[agent]\n= 3\n", FILE)


def test_auth_none_is_taken_on_loopback() -> None:
    config = parse('[auth]\nplugin = "none"\n[agent]\nlisten = "[::1]:0"\n[controller]\nlisten = "localhost:0"', FILE)
    assert config.auth.plugin is AuthPlugin.NONE
    refuse_open_address(config, "--listen", "127.0.0.2:0")
    with pytest.raises(ConfigError, match=r'--listen is "n1:0"'):
        refuse_open_address(config, "--listen", "n1:0")


def test_warns_of_a_heartbeat_timeout_below_30_s() -> None:
    """R05"""
    config = parse("[controller]\nheartbeat_timeout_secs = 29.5", FILE)
    assert any("heartbeat_timeout_secs is 29.5, below 30" in line for line in config.warnings)
    assert parse("[controller]\nheartbeat_timeout_secs = 30", FILE).warnings == ()


def test_finds_the_file_by_spur_conf_alone() -> None:
    assert default_path({}) == Path("/etc/spur/spur.toml")
    assert default_path({"SPUR_CONF": "/x.toml", "SLURM_CONF": "/y"}) == Path("/x.toml")


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    large = tmp_path / "large"
    with open(large, "wb") as file:
        file.truncate(17 * 2**20)
    binary = tmp_path / "binary"
    binary.write_bytes(b"# \xff")
    for path, reason in (
        (tmp_path / "none", "no such file: write one, or point SPUR_CONF to it"),
        (tmp_path, "Is a directory"),
        (fifo, "not a regular file"),
        (large, "larger than 16777216 bytes"),
        (binary, "not UTF-8 at byte 2"),
    ):
        with pytest.raises(ConfigError) as refusal:
            load(path)
        assert str(refusal.value) == f"{path}: {reason}"


def test_the_example_is_a_configuration_that_shows_every_key() -> None:
    text = example()
    parse(text, FILE)
    uncommented = "\n".join(line.removeprefix("# ") for line in text.splitlines() if " = " in line or line[:1] == "[")
    shown = tomllib.loads(uncommented)
    parse(uncommented, FILE)
    for name, table in TABLES.items():
        assert set(shown[name]) == {one.key for one in options_of(table)}
    for name, table in ARRAYS.items():
        assert set(shown[name][0]) == {one.key for one in options_of(table)}


def test_the_commented_keys_of_the_example_have_the_values_that_hold_anyway() -> None:
    tables = "\n".join(example().partition("\n[[")[0].splitlines())
    uncommented = "\n".join(
        line.removeprefix("# ") for line in tables.splitlines() if " = " in line or line.startswith("[")
    )
    shown = parse(uncommented.partition("[hooks]")[0], FILE)
    assert shown == Config(path=FILE)


@settings(derandomize=True)
@given(
    st.dictionaries(
        st.sampled_from([*TABLES, *ARRAYS, "cluster_name", "other"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(["names", "name", "listen", "cpus", "gres", "nodes"]), inner, max_size=3
                )
            ),
            max_leaves=6,
        ),
    )
)
def test_no_values_make_it_fail_otherwise_than_by_config_error(values: dict[str, object]) -> None:
    from spur.config import build
    from spur.tables import TableError

    try:
        build(values)
    except TableError as error:
        assert "\n" not in str(error)
