#!/bin/bash
# IBM Spectrum LSF: `bsub < lsf.sh`. Written for LSF 10.1, not run by the tests.
#
# LSF places the ranks: it writes hosts and slots to the variable $LSB_MCPU_HOSTS.

#BSUB -J train
#BSUB -n 8
# Four ranks on each host.
#BSUB -R "span[ptile=4]"
# With GPUs: four on each host.
##BSUB -gpu "num=4"
#BSUB -W 12:00
#BSUB -o train-%J.log
# The job may start again: after a preemption, and if it ends with the status of SIGTERM.
#BSUB -r
#BSUB -Q "143"
# Ten minutes before the time limit, LSF sends this signal instead of its own.
#BSUB -wt 10 -wa TERM

# The environment in which easyddl is installed, on a file system that all hosts share:
# source ~/venv/bin/activate

# Reads $LSB_MCPU_HOSTS: no hosts and no number of ranks are needed.
exec easyddl run -- python train.py
