#!/bin/bash
# IBM Spectrum LSF: `bsub < lsf.sh`. Written for LSF 10.1, not run by the tests. This way bsub passes no
# arguments: write those of the script on the last line.
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

# A failure of another kind may end with the same status at every start, and LSF itself sets no limit.
# So each start of this job adds a line to a file, and after 20 restarts the job ends.
starts="train-$LSB_JOBID.starts"
date >> "$starts"
if [ "$(wc -l < "$starts")" -gt 21 ]; then
    echo "The job has been restarted 20 times. See $starts." >&2
    exit 1
fi

# The MPI that easyddl shall use, and the environment in which it is installed, on a file system
# that all hosts share:
# module load mpi
# source ~/venv/bin/activate

# Reads $LSB_MCPU_HOSTS: no hosts and no number of ranks are needed.
# --grace: the seconds for one step, a validation and the backup, after SIGTERM.
exec easyddl run --grace 100 -- python train.py
