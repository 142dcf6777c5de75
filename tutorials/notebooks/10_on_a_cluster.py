# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # On a cluster
#
# A script that trains on a laptop trains on a cluster without a change. This notebook shows what
# does change: how the job is started, and what you check before. It explains a batch file for Slurm
# line by line, and shows the command that `easyddl run` would run in it. You need no cluster to run
# it: nothing here leaves this computer. You should know the
# [four lines](01_first_four_lines.ipynb). [From one host to many](../clusters.md) is the
# reference for what you see here.
#
# To run it, install the extras `tensorflow`, `mpich` and `tutorials`, and open it in Jupyter: see
# [Notebooks](README.md).

# %%
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import IPython.display

import easyddl as ddl

# %% [markdown]
# ## What changes
#
# A cluster consists of computers that are called *nodes*. You log in to one of them, the login
# node, and ask a *scheduler* for others. When they are free, it starts your job on them.
# [Slurm](https://slurm.schedmd.com/quickstart.html) is a scheduler. You ask it by a *batch file*: a
# shell script whose first lines say how many nodes the job needs, and for how long.
#
# | | on a laptop | on a cluster with Slurm |
# |---|---|---|
# | the script | `train.py` | the same file |
# | the start command | `easyddl run -np 8 python train.py` | `sbatch slurm.sbatch train.py` |
# | the number of ranks | `-np 8` | `--nodes=2` and `--ntasks-per-node=4` in the batch file |
# | the environment | the one that is active | two lines of the batch file activate it |
#
# ## The batch file
#
# [slurm.sbatch](../clusters/slurm.sbatch) is ready to copy. This is the whole file.

# %%
CLUSTERS = pathlib.Path("..", "clusters")
batch_file = (CLUSTERS / "slurm.sbatch").read_text()
print(batch_file)

# %% [markdown]
# Slurm reads the lines that begin with `#SBATCH`. For the shell they are comments. A line that
# begins with `##SBATCH` is a comment for both: remove one `#` to make it active. This is what each
# line does.

# %%
EXPLANATIONS = {
    "#!/bin/bash": "The shell runs the file, on the first of the nodes.",
    "#SBATCH --job-name=train": "The name of the job in the list of jobs.",
    "#SBATCH --nodes=2": "The number of nodes.",
    "#SBATCH --ntasks-per-node=4": "The number of ranks on each node. Slurm calls a rank a task.",
    "#SBATCH --time=12:00:00": "The time limit. When it is over, Slurm ends the job.",
    "#SBATCH --output=train-%j.log": "The file for what the job prints. %j is the job's number.",
    "##SBATCH --gres=gpu:4": "Inactive. The number of GPUs on each node, one for each rank.",
    "##SBATCH --cpus-per-task=8": "Inactive. The number of cores of each rank; without it, one.",
    "#SBATCH --requeue": "If Slurm takes the nodes back, the job goes back to the queue.",
    "#SBATCH --open-mode=append": "A job that starts again continues its log.",
    "#SBATCH --signal=TERM@120": "120 seconds before the time limit, the ranks get SIGTERM.",
    "#SBATCH --no-kill": "If a node fails, Slurm lets the job go on with the others.",
    "# module load mpi": "Inactive. Makes the MPI of the site available.",
    "# source ~/venv/bin/activate": "Inactive. Activates the environment that has easyddl.",
    '[ -n "$SLURM_CPUS_PER_TASK" ] && export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"': (
        "Passes the number of cores of a rank on to srun, which does not read it from the job."
    ),
    'python -m easyddl run --grace 100 --restarts 3 -- python "$@"': (
        "Starts the ranks, and again up to three times after a failure of a node or of a rank. "
        '"$@" stands for what follows the file on the line of sbatch.'
    ),
    "status=$?": "Keeps the exit status of the training.",
    'if { [ "$status" -eq 143 ] || [ "$status" -eq 75 ]; } && '
    '[ "${SLURM_RESTART_COUNT:-0}" -lt 20 ]; then': (
        "143 means that SIGTERM ended the training, and 75 that too few nodes are left. "
        "20 restarts at most."
    ),
    'scontrol requeue "$SLURM_JOB_ID"': "Puts the job back into the queue.",
    'exit "$status"': "The job ends with the status of the training.",
}

for line, explanation in EXPLANATIONS.items():
    print(f"{line}\n        {explanation}")

lines = [line.strip() for line in batch_file.splitlines()]
assert all(line in lines for line in EXPLANATIONS)
active = {line for line in lines if line.startswith("#SBATCH") or not line.startswith("#")}
assert active - set(EXPLANATIONS) == {"", "fi"}

# %% [markdown]
# Edit two lines for your site: `module load` and `source`. These are the commands for a job. They
# need a cluster, so this notebook does not run them.
#
# ```sh
# sbatch slurm.sbatch train.py --epochs 20    # submit the job, with arguments for the script
# sbatch --nodes=4 slurm.sbatch train.py      # options here replace those of the file
# squeue --me                                 # your jobs, waiting and running
# tail -f train-12345.log                     # what job 12345 prints
# scancel 12345                               # end it
# ```
#
# ## What `easyddl run` does in a job
#
# Slurm describes the job to the batch file in environment variables. `easyddl run` reads the nodes
# and the number of ranks on each from them, so the batch file need not name them. `--dry-run`
# prints the command that would start the ranks, and stops. The cell below defines a function that
# runs it with the variables of a job. The function removes the folders of programs from the output.
#
# First without variables of a scheduler, as on a laptop:

# %%
SCHEDULERS = ("SLURM_", "PBS_", "LSB_", "FLUX_", "PMI", "HYDRA_", "OMPI_", "PRTE_", "I_MPI_")


def dry_run(*arguments, status=0, **variables):
    """What `easyddl run --dry-run` prints if these environment variables are set.

    Args:
        *arguments: Its further arguments.
        status: Integer. The exit status that it must have.
        **variables: The environment variables.
    """
    without = {name: os.environ[name] for name in os.environ if not name.startswith(SCHEDULERS)}
    done = subprocess.run(
        [sys.executable, "-m", "easyddl", "run", "--dry-run", *arguments],
        env={**without, **variables},
        capture_output=True,
        text=True,
    )
    assert done.returncode == status, done.stderr
    return re.sub(r"\S*/(mpirun|python[\d.]*)", r"\1", done.stderr)


on_this_computer = dry_run("-np", "8", "python", "train.py")
print(on_this_computer)
assert "8 ranks on this host: python train.py" in on_this_computer
assert "mpirun" in on_this_computer and "-np 8" in on_this_computer

# %% [markdown]
# Now with the variables that Slurm sets for the batch file above. Slurm abbreviates the names of
# the nodes, `node[01-02]`, and the number of tasks on each, `4(x2)`. `easyddl run` asks
# `srun --mpi=list` by which interfaces Slurm can start MPI, and takes the one that this MPI needs.
# This computer need not have Slurm, so a small program stands in for `srun`. It answers this one
# question.

# %%
folder = tempfile.TemporaryDirectory()
stand_in = pathlib.Path(folder.name, "srun")
stand_in.write_text("#!/bin/sh\necho 'MPI plugin types are... none pmi2 pmix'\n")
stand_in.chmod(0o755)

SLURM = {
    "SLURM_JOB_ID": "12345",
    "SLURM_JOB_NODELIST": "node[01-02]",
    "SLURM_TASKS_PER_NODE": "4(x2)",
    "PATH": f"{folder.name}{os.pathsep}{os.environ['PATH']}",
}
in_slurm = dry_run("--grace", "100", "--", "python", "train.py", **SLURM)
print(in_slurm)
assert "8 ranks on node01:4, node02:4 (from the allocation of Slurm's srun)" in in_slurm
assert re.search(
    r"srun --mpi=pmi[x2] --cpu-bind=none --overlap --kill-on-bad-exit=0 --export=ALL"
    r" --nodes=2 --ntasks=8 ",
    in_slurm,
)

# %% [markdown]
# The first line says what `easyddl run` has found: two nodes with four ranks each. The second line
# is the command. `srun` starts `easyddl.launch.supervise.rank` eight times, and each of these
# processes becomes one rank, which runs `python train.py`.
#
# With `--cpus-per-task=8` Slurm sets one more variable. `easyddl run` passes it on, so that each
# rank gets eight cores:

# %%
with_cores = dry_run("python", "train.py", **SLURM, SLURM_CPUS_PER_TASK="8")
assert "--cpus-per-task=8" in with_cores and "--cpus-per-task" not in in_slurm

# %% [markdown]
# If you ask for more ranks than the job has, `easyddl run` ends with an error before anything
# starts:

# %%
refusal = dry_run("-np", "16", "python", "train.py", status=2, **SLURM)
print(refusal)
assert "`-np 16` asks for more ranks than there are slots" in refusal

# %% [markdown]
# ## Other schedulers
#
# The folder [tutorials/clusters](../clusters) has a file for each of these. Comments in the files
# say what to change.
#
# | site | file | how the job is started |
# |---|---|---|
# | computers with ssh | [hosts.txt] | `easyddl run --hostfile hosts.txt python train.py` |
# | Slurm | [slurm.sbatch] | `sbatch slurm.sbatch train.py` |
# | PBS Professional, OpenPBS | [pbs.sh] | `qsub -v SCRIPT=train.py pbs.sh` |
# | LSF | [lsf.sh] | `bsub < lsf.sh` |
# | Kubernetes, MPI Operator | [mpijob.yaml] | `kubectl apply -f mpijob.yaml` |
# | Kubernetes, Kubeflow Trainer | [trainjob.yaml] | `kubectl apply -f trainjob.yaml` |
# | Amazon SageMaker | [sagemaker_job.py] | `python sagemaker_job.py` with its arguments |
# | Azure Machine Learning | [azureml.yml] | `az ml job create -f azureml.yml` |
#
# [hosts.txt]: ../clusters/hosts.txt
# [slurm.sbatch]: ../clusters/slurm.sbatch
# [pbs.sh]: ../clusters/pbs.sh
# [lsf.sh]: ../clusters/lsf.sh
# [mpijob.yaml]: ../clusters/mpijob.yaml
# [trainjob.yaml]: ../clusters/trainjob.yaml
# [sagemaker_job.py]: ../clusters/sagemaker_job.py
# [azureml.yml]: ../clusters/azureml.yml
#
# easyddl's tests run `slurm.sbatch` with Slurm. The other files follow the manuals of these
# systems, and were not run there. SageMaker and Azure Machine Learning call `mpirun` themselves.
# The other systems tell `easyddl run` the hosts: Slurm, PBS and LSF by environment variables, and
# both Kubernetes operators by a file.
#
# The next cell gives `easyddl run` the same two nodes as these systems would. It finds the same
# eight ranks each time. The last line takes its hosts, gpu1 and gpu2, from hosts.txt.

# %%
listed = {
    "hosts.txt", "slurm.sbatch", "pbs.sh", "lsf.sh", "mpijob.yaml", "trainjob.yaml",
    "sagemaker_job.py", "azureml.yml",
}  # fmt: skip
assert {path.name for path in CLUSTERS.iterdir()} == listed

node_file = pathlib.Path(folder.name, "nodes")  # PBS: a line for each rank
node_file.write_text("node01\n" * 4 + "node02\n" * 4)
mounted = pathlib.Path(folder.name, "hostfile")  # Kubernetes: a line for each host
mounted.write_text("node01 slots=4\nnode02 slots=4\n")

SITES = {
    "Slurm": SLURM,
    "PBS": {"PBS_JOBID": "12345", "PBS_NODEFILE": str(node_file)},
    "LSF": {"LSB_JOBID": "12345", "LSB_MCPU_HOSTS": "node01 4 node02 4"},
    "Kubernetes": {"HYDRA_HOST_FILE": str(mounted)},
}
for site, variables in SITES.items():
    found = dry_run("python", "train.py", **variables).splitlines()[0]
    print(f"{site:12}{found}")
    assert "8 ranks on node01:4, node02:4" in found

over_ssh = dry_run("--hostfile", str(CLUSTERS / "hosts.txt"), "python", "train.py").splitlines()[0]
print(f"{'ssh':12}{over_ssh}")
assert "8 ranks on gpu1:4, gpu2:4" in over_ssh

# %% [markdown]
# ## Check the nodes before a long job
#
# `easyddl doctor` examines nodes and the links between them, and says what is wrong and what to do.
# In a job it examines the nodes of the job: put the line `python -m easyddl doctor` before the line
# that trains. Here it examines this computer alone. `easyddl doctor --help` lists its options.

# %%
doctor = subprocess.run([sys.executable, "-m", "easyddl", "doctor"], capture_output=True, text=True)
print(doctor.stdout)
subjects = {line.split()[1] for line in doctor.stdout.splitlines() if len(line.split()) > 1}
assert {"software", "memory", "MPI"} <= subjects
assert doctor.returncode == 0 and "Training can start" in doctor.stdout

# %% [markdown]
# The first lines are the findings, one for each thing that was examined. A finding that is not
# `fine` comes with advice. The table has a line for each node: `copy` is the bandwidth of a copy
# in memory, `access` the latency of memory, and `clock` the offset of the clock. The tree shows
# processors and caches; [Examine the hosts](../start_a_job.md#examine-the-hosts) explains its
# first line. The last line says whether training can start, and so does the exit status. With
# several nodes, the report also has the bandwidth and the latency of each pair of them.
#
# ## Nodes in several racks
#
# The nodes of a rack have a switch, and the links between racks are often slower than those within.
# A gradient then should be added up within each rack first. `easyddl plan` finds the groups and the
# order of the nodes, and writes them to a file for `easyddl run --plan`. It measures the nodes of
# `-H`, or reads a file: Slurm's `topology.conf` lists the nodes of each switch. In this one the
# nodes are numbered across two racks. `--rate` is that of a node's link, `--uplink` that of the
# links between switches.

# %%
topology = pathlib.Path(folder.name, "topology.conf")
topology.write_text(
    "SwitchName=rack1 Nodes=node[01,03]\n"
    "SwitchName=rack2 Nodes=node[02,04]\n"
    "SwitchName=core Switches=rack[1-2]\n"
)
network = ["--topology", str(topology), "--rate", "10 Gbit/s", "--uplink", "2 Gbit/s"]
files = {name: str(pathlib.Path(folder.name, name)) for name in ("plan.toml", "plan.svg")}
planned = subprocess.run(
    [sys.executable, "-m", "easyddl", "plan", *network, "-H", "node01:4,node02:4,node03:4,node04:4",
     "-o", files["plan.toml"], "--plot", files["plan.svg"]],
    capture_output=True,
    text=True,
)  # fmt: skip
print(planned.stdout.replace(f"{folder.name}/", ""))
assert planned.returncode == 0, planned.stderr
times = dict(re.findall(r"^(\S.*?) {2,}([\d.]+) ms", planned.stdout, re.MULTILINE))
assert float(times["planned"]) < float(times["hosts as listed, without a plan"]) / 1.5
IPython.display.SVG(filename=files["plan.svg"])

# %% [markdown]
# The times are computed from the rates. Ranks keep their numbers: the job below has its ranks on
# the nodes in the order of the list, and only the sums follow the plan. [Plan hosts for a
# network](../planning.md) explains the table.

# %%
with_plan = dry_run(
    *("--plan", files["plan.toml"], "-H", "node01:4,node02:4,node03:4,node04:4"),
    *("python", "train.py"),
)
print(with_plan.splitlines()[0])
assert "16 ranks on node01:4, node02:4, node03:4, node04:4" in with_plan

# %% [markdown]
# ## Two nodes on this computer
#
# Some things depend on the node of a rank: which GPU it takes, and which ranks it reaches through
# shared memory. To try this without a cluster, set `EASYDDL_HOSTS` to a host name for each rank.
# The ranks then act as if they were on these hosts. What they send to another host goes through
# MPI, as on a cluster. The times of such a job say nothing about a network.

# %%


def place():
    total = ddl.allreduce(float(ddl.rank()), op="sum")
    return ddl.rank(), ddl.node_rank(), ddl.local_rank(), ddl.num_nodes(), total


places = ddl.run(place, np=4, env={"EASYDDL_HOSTS": "a,a,b,b"})
print("rank  node_rank  local_rank")
for rank, node, local, _, _ in places:
    print(f"{rank:4}{node:11}{local:12}")
assert [(node, local) for _, node, local, _, _ in places] == [(0, 0), (0, 1), (1, 0), (1, 1)]
assert all(nodes == 2 and total == 0 + 1 + 2 + 3 for *_, nodes, total in places)

# %% [markdown]
# `rank` is unique in the job. `node_rank` is the number of the node. `local_rank` is unique on
# its node: it chooses a GPU, for example, or decides who unpacks data to the disk of the node.
#
# ## Before the time limit
#
# A job that needs more time than the limit must save its state, and continue in another job.
# `ddl.BackupAndRestore` does both. These callbacks are all that the script needs:
#
# ```python
# callbacks = [
#     ddl.DDLCallback(),
#     *mine,
#     ddl.BackupAndRestore("backup"),
#     ddl.DDLGlobalVariablesCallback(),
# ]
# ```
#
# 1. 120 seconds before the time limit, Slurm sends SIGTERM to the ranks.
# 2. All ranks stop after the same step, and rank 0 saves a backup.
# 3. The training ends with status 143, and the batch file puts the job back into the queue.
# 4. The job starts again, and the training continues after the step of the backup.
#
# A preemption, in which Slurm takes the nodes back for a more urgent job, goes the same way. In
# it `easyddl run` receives the signal too, passes it on, and kills what still runs after
# `--grace` seconds. The site decides how many seconds a preemption leaves, and `--grace` should
# be less. The cell below prints both times of the file. [Checkpoints](07_checkpoints.ipynb) kills
# a training in this way and continues it with the same bits.
# [Preemption](../clusters.md#preemption-time-limits-and-spot-machines) describes the other
# schedulers.

# %%
announced = int(re.search(r"--signal=TERM@(\d+)", batch_file).group(1))
grace = int(re.search(r"--grace (\d+)", batch_file).group(1))
print(f"time limit: SIGTERM {announced} seconds before it")
print(f"preemption: what still runs is killed {grace} seconds after SIGTERM")
assert grace < announced

# %% [markdown]
# ## Where the files are
#
# Clusters have a file system that all nodes share, often in several parts: a small one for your
# home directory, and a large and fast one for data.
#
# - **The environment and the script** must be at the same path on all nodes. Put them on the shared
#   file system. Create the environment on the login node: load the module of the site's MPI first,
#   and install no MPI from PyPI, because the site's own is configured for its network
#   ([Choose an MPI](../install.md#choose-an-mpi)).
# - **The modules** are those of the login shell only. The batch file must load them again: these
#   are the lines `module load` and `source`.
# - **The data** are read by every rank, each its own part. For many small files the disk of the
#   node is faster than the shared file system, if the site offers one: copy them there first.
#   Compute nodes often have no access to the Internet: download data on the login node.
# - **Backups and models** are written by rank 0 only. Put them on the shared file system, because
#   after a restart rank 0 may be on another node. Two jobs must not share a backup. Give each job
#   a name of its own, as in `sbatch --job-name=resnet slurm.sbatch train.py`: the file names
#   every job `train`. Then name the backup after the job:
#   `ddl.BackupAndRestore(f"backup-{os.environ['SLURM_JOB_NAME']}")`.
# - **What the ranks print** goes to the file that `--output` in the batch file names. Each line
#   begins with the number of its rank.

# %% [markdown]
# ## Exercise
#
# Your cluster has nodes with 64 cores. You get four nodes, and want to run eight ranks with eight
# cores on each. Write the line with `sbatch` that asks for this with the unchanged file
# `slurm.sbatch`. Then use `dry_run` to check how many ranks `easyddl run` starts in that job, and
# that it passes on the cores. Which values do `SLURM_JOB_NODELIST`, `SLURM_TASKS_PER_NODE` and
# `SLURM_CPUS_PER_TASK` have?

# %% [markdown]
# ## Solution
#
# ```sh
# sbatch --nodes=4 --ntasks-per-node=8 --cpus-per-task=8 slurm.sbatch train.py
# ```

# %% tags=["hide-cell"]
larger = {
    **SLURM,
    "SLURM_JOB_NODELIST": "node[01-04]",
    "SLURM_TASKS_PER_NODE": "8(x4)",
    "SLURM_CPUS_PER_TASK": "8",
}
solution = dry_run("--grace", "100", "--", "python", "train.py", **larger)
print(solution.splitlines()[0])
assert "32 ranks on node01:8, node02:8, node03:8, node04:8" in solution
assert "--nodes=4 --ntasks=32" in solution and "--cpus-per-task=8" in solution

# %%
folder.cleanup()

# %% [markdown]
# ## What next
#
# - [From one host to many](../clusters.md) describes every scheduler of the table.
# - [Large batches](../large_batches.md) shows how to train with many ranks.
# - [Scaling](04_scaling.ipynb) shows how to measure whether more nodes are worth it.
