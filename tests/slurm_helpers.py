"""A Slurm cluster of this one machine, for tests: munged, slurmctld and slurmd with all their files in one folder."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

DAEMONS = {
    name: shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") for name in ("munged", "slurmctld", "slurmd")
}
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmdPort={slurmd_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=100000,batch_sched_delay=0,bf_interval=1
ReturnToService=2
MinJobAge=300
KillWait=10
OverTimeLimit=0
PropagateResourceLimits=NONE
MailProg=/bin/true
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=4000 Gres=gpu:2 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES OverSubscribe=FORCE:4 MaxTime=INFINITE State=UP
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def one_node_slurm(folder: Path) -> Generator[dict[str, str]]:
    """Run a cluster of this machine. Yield the variables of the environment that its commands need."""
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    host, user = socket.gethostname().partition(".")[0], pwd.getpwuid(os.getuid()).pw_name
    values = {"host": host, "user": user, "folder": folder, "cpus": os.cpu_count()}
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(**values, ctld_port=free_port(), slurmd_port=free_port()), encoding="utf-8")
    (folder / "gres.conf").write_text("Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n", encoding="utf-8")
    environment = {"SLURM_CONF": str(conf)}
    munge_files = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    commands = (
        [DAEMONS["munged"], "--foreground", "--force", f"--socket={folder}/munge.socket", *munge_files],
        [DAEMONS["slurmctld"], "-D", "-f", conf],
        [DAEMONS["slurmd"], "-D", "-f", conf, "-N", host],
    )
    with ExitStack() as stack:
        for command in commands:
            process = subprocess.Popen(
                list(map(str, command)),
                env={**os.environ, **environment},
                stdout=subprocess.DEVNULL,
                stderr=stack.enter_context((folder / f"{Path(str(command[0])).name}.err").open("wb")),
                start_new_session=True,
            )
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)
            time.sleep(0.5)
        _wait_until_idle(environment)
        yield environment
        subprocess.run(["scancel", "--full", "--partition=main"], env={**os.environ, **environment}, check=False)


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let the commands of Slurm reach a cluster of this machine, whose jobs can import the modules of tests."""
    if not all(DAEMONS.values()) or shutil.which("sbatch") is None:
        pytest.skip("Slurm is not installed")
    tests = Path(__file__).parent
    with pytest.MonkeyPatch.context() as patched, one_node_slurm(tmp_path_factory.mktemp("slurm")) as environment:
        patched.setenv("PYTHONPATH", os.pathsep.join(map(str, [tests.parent, tests, tests / "tools" / "cluster"])))
        for name, value in environment.items():
            patched.setenv(name, value)
        yield


def _wait_until_idle(environment: dict[str, str]) -> None:
    state = ""
    for _ in range(120):
        done = subprocess.run(
            ["sinfo", "-h", "-o", "%t"], env={**os.environ, **environment}, capture_output=True, text=True, check=False
        )
        state = done.stdout.strip() or done.stderr
        if state == "idle":
            return
        time.sleep(0.25)
    raise RuntimeError(f"no node is idle: {state}")
