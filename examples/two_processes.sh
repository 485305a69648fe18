#!/usr/bin/env bash
# One run in two processes on one machine: bash examples/two_processes.sh [RUN_DIR]
set -euo pipefail
run_dir=${1:-runs/two-processes}
port=${PORT:-29471}
start() {
  lopt meta-train quadratic-schedule --num-outer-steps 200 --wandb off --run-dir "$run_dir" \
    --coordinator-address "127.0.0.1:$port" --num-processes 2 --process-id "$1"
}
start 1 &
start 0
wait
