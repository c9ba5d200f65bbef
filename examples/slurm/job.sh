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
# Send USR1 to the batch script (B:) two minutes before the time limit. The daemon's budget for a stop is 75 s.
#SBATCH --signal=B:USR1@120
set -u

: "${CONFIG:?a configuration}" "${RUN:?the folder of the run}"
ending=""
child=""

# On the first SIGTERM tolariad stops at the next step boundary with a checkpoint. `ending` keeps a signal that arrives
# before the child exists.
end() {
    ending=$1
    heard=yes
    [ -n "$child" ] && kill -TERM "$child" 2>/dev/null
}
trap 'end requeue' USR1
# scancel and preemption: Slurm decides whether the job is queued again.
trap 'end stop' TERM

srun --ntasks=1 --kill-on-bad-exit=1 tolariad run "$CONFIG" --dir "$RUN" &
child=$!
[ -n "$ending" ] && kill -TERM "$child" 2>/dev/null
# A signal interrupts `wait`, which then returns the signal's code and not the child's: wait again.
while :; do
    heard=""
    wait "$child"
    code=$?
    [ -z "$heard" ] && break
done

case $code in
    0)
        # Stopped at the time limit: queue a job for the rest of the run.
        if [ "$ending" = requeue ]; then
            scontrol requeue "$SLURM_JOB_ID"
        fi
        ;;
    75)
        # A daemon on an earlier node still holds the run: the same start may succeed later.
        echo "tolariad: exit $code, queueing the job again" >&2
        scontrol requeue "$SLURM_JOB_ID"
        exit "$code"
        ;;
    *)
        # Wrong usage, damage, a failed run, a wrong configuration: another start would end in the same way. After
        # an I/O error (74) the folder may be gone, and another start would begin a new run.
        exit "$code"
        ;;
esac
