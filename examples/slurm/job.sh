#!/bin/bash
# One training run as a Slurm job. It may be preempted, reach its time limit or lose its node; the next job resumes it.
#
#   sbatch --export=ALL,CONFIG=$PWD/my.yaml,RUN=$SCRATCH/my examples/slurm/job.sh
#
# RUN must be on a file system that honours O_DSYNC. tolariad refuses network file systems unless the configuration has
# `journal.allow_filesystem: true`. Then its promises hold only as far as that file system's do.
#SBATCH --job-name=tolariad
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --time=04:00:00
# If the job is preempted or its node fails, Slurm queues it again and this script starts from the top.
#SBATCH --requeue
# All starts write to the same output file.
#SBATCH --open-mode=append
# Two minutes before the time limit, send USR1 to every process of the step: the daemon stops the run, and all others
# ignore the signal. The daemon's budget for a stop is 75 s. This script itself gets no warning.
#SBATCH --signal=USR1@120
set -u

: "${CONFIG:?a configuration}" "${RUN:?the folder of the run}"

# scancel and preemption send SIGTERM to all processes of the job. The daemon stops the run. This script waits for it,
# and leaves to Slurm whether the job is queued again.
is_ended=""
heard=""
trap 'is_ended=yes; heard=yes' TERM

srun --ntasks=1 --kill-on-bad-exit=1 tolariad run "$CONFIG" --dir "$RUN" --set signals.USR1=stop &
child=$!
# A signal to this script interrupts `wait`, which then returns the signal's code and not the child's: wait again.
while :; do
    heard=""
    wait "$child"
    code=$?
    [ -z "$heard" ] && break
done

case $code in
    75 | 143)
        # 143: a signal ended the run before its end, such as the warning. 75: a daemon on an earlier node still holds
        # the run. Queue a job for the rest of the run. Every other end is final: another start would end in the same
        # way. After an I/O error (74) the folder may be gone, and another start would begin a new run.
        if [ -z "$is_ended" ]; then
            echo "tolariad: exit $code, queueing the job again" >&2
            scontrol requeue "$SLURM_JOB_ID"
        fi
        ;;
esac
exit "$code"
