#!/bin/bash
# One training run as a Slurm job that may be preempted, run into its time limit or lose its node, and goes on each time.
#   sbatch --export=ALL,CONFIG=$PWD/my.yaml,RUN=$SCRATCH/my examples/slurm/job.sh
# RUN lies on a disk of the node or of a file system that honours O_DSYNC; tolariad refuses network file systems unless the
# configuration says `journal.allow_filesystem: true`, and then keeps its promises only as far as that file system does.
#SBATCH --job-name=tolariad
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --time=04:00:00
# Preempted, or its node gone: the job is queued again, and this script starts over.
#SBATCH --requeue
# The output of all lives in one file.
#SBATCH --open-mode=append
# Two minutes before the end the batch script (B:) hears USR1: longer than the daemon's own budget for a stop, 75 s.
#SBATCH --signal=B:USR1@120
set -u

: "${CONFIG:?a configuration}" "${RUN:?the folder of the run}"
ending=""
child=""

# tolariad stops at the next step boundary with a checkpoint on the first SIGTERM. A signal that comes before there is a
# child to hand it to is kept in `ending`.
end() {
    ending=$1
    heard=yes
    [ -n "$child" ] && kill -TERM "$child" 2>/dev/null
}
trap 'end requeue' USR1
# scancel and preemption: Slurm itself decides whether the job comes back.
trap 'end stop' TERM

srun --ntasks=1 --kill-on-bad-exit=1 tolariad run "$CONFIG" --dir "$RUN" &
child=$!
[ -n "$ending" ] && kill -TERM "$child" 2>/dev/null
# A signal interrupts `wait`, whose answer is then the signal's and not the child's: ask again.
while :; do
    heard=""
    wait "$child"
    code=$?
    [ -z "$heard" ] && break
done

case $code in
    0)
        # Stopped because the time was up: the rest of the run is another job's.
        if [ "$ending" = requeue ]; then
            scontrol requeue "$SLURM_JOB_ID"
        fi
        ;;
    74 | 75)
        # Input or output, or a daemon of an earlier node that still holds the run: the same start may succeed later.
        echo "tolariad: exit $code, the job is queued again" >&2
        scontrol requeue "$SLURM_JOB_ID"
        exit "$code"
        ;;
    *)
        # Usage, damage, a failed run, a wrong configuration: the next start would end the same way.
        exit "$code"
        ;;
esac
