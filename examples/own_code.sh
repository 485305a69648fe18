#!/usr/bin/env bash
# Meta-train an optimizer of one's own on a task of one's own, both from files outside
# the package: bash examples/own_code.sh [RUN_DIR]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
run_dir=${1:-runs/own}
optimizer=$here/sign_momentum.py:SignMomentum
flags=(
  --optimizer "$optimizer" --estimator.truncation.horizon 100 --wandb off
  --num-outer-steps 200 --evaluate-every-steps 100
)

# Kill the run after its first metrics; the same command resumes it.
lopt meta-train --tasks "$here/bowl.py:Bowl" "${flags[@]}" --run-dir "$run_dir" &
while [ ! -s "$run_dir/metrics.jsonl" ] && kill -0 $!; do sleep 0.1; done
kill -9 $! || true
lopt meta-train --tasks "$here/bowl.py:Bowl" "${flags[@]}" --run-dir "$run_dir"

lopt meta-train --run-dir "$run_dir" --extend 100
lopt plot "$run_dir"
lopt export "$run_dir" --out "$run_dir/own.safetensors"
lopt evaluate "$run_dir" --tasks Bowl --num-steps 100 --num-seeds 3 --baselines adam

# Start from the result, on another task.
lopt meta-train --tasks quadratic "${flags[@]}" --init "$run_dir/own.safetensors" \
  --run-dir "$run_dir-quadratic"
lopt runs "$(dirname "$run_dir")"
