#!/bin/sh
# SLURM's TaskProlog: watches the run of each job that names it, until the run or the job ends.
#   sbatch --export=ALL,LLDSCOPE_RUN=runs/mine,LLDSCOPE_NOTIFY=https://alerts.example/hook train.sh
# SLURM obeys what a task prolog prints, and a failed one ends the task: it is silent and succeeds.
if [ "${SLURM_PROCID:-}" = 0 ] && [ -n "${LLDSCOPE_RUN:-}" ] && command -v lldscope >/dev/null; then
    log="${SLURM_SUBMIT_DIR:-.}/lldscope-${SLURM_JOB_ID:-0}.log"
    nohup lldscope watch "$LLDSCOPE_RUN" </dev/null >"$log" 2>&1 &
fi
exit 0
