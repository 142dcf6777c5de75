#!/bin/bash
# PBS Professional and OpenPBS: `qsub -v SCRIPT=train.py,ARGS="--epochs 20" pbs.sh`. Written for OpenPBS
# 23, not run by the tests. ARGS may be left out.
#
# PBS places the ranks: chunks × mpiprocs. It writes one line a rank to the file $PBS_NODEFILE.

#PBS -N train
#PBS -l select=2:ncpus=16:mpiprocs=4
# With GPUs: one for each rank.
##PBS -l select=2:ncpus=16:mpiprocs=4:ngpus=4
#PBS -l walltime=12:00:00
#PBS -j oe
# PBS may start the job again after a preemption or the loss of a node. ddl.BackupAndRestore then
# resumes the training.
#PBS -r y
# At the walltime PBS sends SIGTERM, and SIGKILL after the `kill_delay` of the queue, which is 10 seconds
# by default. It does not announce the walltime earlier, and does not start such a job again: submit it
# again by the same line. An integer `save_freq` keeps the loss small if the delay is too short.

cd "$PBS_O_WORKDIR" || exit 1
# The MPI that easyddl shall use, and the environment in which it is installed, on a file system
# that all nodes share:
# module load mpi
# source ~/venv/bin/activate

# Reads $PBS_NODEFILE: no hosts and no number of ranks are needed.
# --grace: the seconds for one step, a validation and the backup, after SIGTERM.
# $ARGS is not quoted, so that the shell splits it at spaces.
exec easyddl run --grace 100 -- python "$SCRIPT" $ARGS
