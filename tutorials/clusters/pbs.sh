#!/bin/bash
# PBS Professional and OpenPBS: `qsub -v SCRIPT=train.py pbs.sh`. Written for OpenPBS 23, not run by
# the tests.
#
# PBS places the ranks: chunks × mpiprocs. It writes one line a rank to the file $PBS_NODEFILE.

#PBS -N train
#PBS -l select=2:ncpus=16:mpiprocs=4
# With GPUs: one for each rank.
##PBS -l select=2:ncpus=16:mpiprocs=4:ngpus=4
#PBS -l walltime=12:00:00
#PBS -j oe
# PBS may start the job again after a preemption. ddl.BackupAndRestore then resumes the training.
#PBS -r y

cd "$PBS_O_WORKDIR" || exit 1
# The environment in which easyddl is installed, on a file system that all nodes share:
# source ~/venv/bin/activate

# Reads $PBS_NODEFILE: no hosts and no number of ranks are needed.
exec easyddl run -- python "$SCRIPT"
