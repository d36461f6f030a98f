#!/bin/sh
# One run on a Mac with Apple silicon and Go, which needs nothing else: builds llmrun, holds it to the real device in every way we know, and writes one
# archive to send back. A step that fails is noted, and the next one begins. On Linux it is a rehearsal on the host device.
#
#   scripts/mac_day.sh            all of it, some minutes
#   scripts/mac_day.sh assume     only the steps whose name holds that word
#
# Exit code: 0 every step ended as it should, 1 some did not, 2 nothing could be run. What is looked for is in docs/metal-assumptions.md.
set -u
cd "$(dirname "$0")/.." || exit 2
only=${1:-}
root=$(pwd)
name=llmrun-mac-$(date -u +%Y%m%dT%H%M%SZ)
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
out=$work/$name
mkdir "$out" || exit 2
command -v go >/dev/null || { echo "mac_day: there is no go: see https://go.dev/dl" >&2; exit 2; }
export CGO_ENABLED=0 LLMRUN_REQUIRE_METAL=1
unset GITHUB_ACTIONS MTL_DEBUG_LAYER MTL_SHADER_VALIDATION LLMRUN_TRACE LLMRUN_CPU
llmrun=$work/llmrun
failed=0

# note NAME CODE WANTED SECONDS: a line of steps.txt, and of the terminal.
note() {
  verdict=ok
  [ "$2" -eq "$3" ] || { verdict="NOT AS WANTED"; failed=$((failed + 1)); }
  printf '%-28s exit %3d, want %d  %5d s  %s\n' "$1" "$2" "$3" "$4" "$verdict" | tee -a "$out/steps.txt"
}

# step NAME WANTED COMMAND...: runs the command, keeps all it says in NAME.txt, and notes how it ended.
step() {
  step=$1 wanted=$2
  shift 2
  case $step in build | *"$only"*) ;; *) return ;; esac
  begin=$(date +%s)
  { printf '$ %s\n' "$*"; "$@"; } >"$out/$step.txt" 2>&1
  code=$?
  note "$step" "$code" "$wanted" $(($(date +%s) - begin))
}

# facts: what Apple's own tools say of the machine. No serial number and no name is asked for.
facts() {
  date -u
  uname -srm
  if command -v sw_vers >/dev/null; then
    sw_vers
    sysctl hw.model hw.ncpu hw.memsize hw.pagesize hw.perflevel0.physicalcpu hw.perflevel1.physicalcpu machdep.cpu.brand_string iogpu.wired_limit_mb
    system_profiler -detailLevel mini SPDisplaysDataType
    pmset -g therm
    pmset -g batt | head -n 1
  fi
  go version
  go env GOOS GOARCH GOARM64 GOAMD64 GOTOOLCHAIN
  git log -1 --format='commit %H %cI' && git status --short
  return 0
}

# each BINARY: every assumption in a process of its own, since Metal's validation ends the process that it objects to.
each() (
  cd internal/metal || exit 2
  worst=0
  for test in $("$1" -test.list '^Test(Assume|Suite|Golden|Stories|EveryKernel|Nothing|Host|Failure|Upload)'); do
    echo "== $test"
    "$1" -test.run "^$test\$" -test.timeout 10m >"$work/one" 2>&1
    code=$?
    if [ $code -ne 0 ]; then worst=1; head -n 200 "$work/one"; fi
    echo "exit $code"
  done
  exit $worst
)

# validated COMMAND...: under Metal's own checks, of the calls and of what the shaders touch.
validated() (
  export MTL_DEBUG_LAYER=1 MTL_SHADER_VALIDATION=1
  "$@"
)

# trace MODEL: records what testdata/traces holds, and compares the two.
trace() {
  "$llmrun" compare --model "$1" -p "Once upon a time" -n 4 --compute-type float32 --shadow off --trace ops --trace-file "$out/trace-$1.jsonl" || return
  go run ./scripts/traces "testdata/traces/$1.jsonl.gz" "$out/trace-$1.jsonl"
}

# catalogue: every mistake that we know how to make must be named.
catalogue() {
  cp docs/faults.md "$out/faults.md" && go run ./scripts/faults -o "$out/faults.md"
}

step facts 0 facts
step build 0 go build -o "$llmrun" ./cmd/llmrun
[ -x "$llmrun" ] || { cat "$out/build.txt" >&2; exit 2; }
step vet 0 go vet ./...
step env 0 "$llmrun" env
step env-json 0 "$llmrun" env --json

step assume 0 go test -count=1 -v -run '^Test(Assum|Info|AllDevices|GELUClamp)' ./internal/metal
step ops-errors 0 go test -count=1 -v -run '^Test(Suite|Golden|Stories|EveryKernel|Erf)$' ./internal/metal
step tests 0 go test -count=1 ./...

step build-tests 0 go test -c -o "$work/metal.test" ./internal/metal
step validated-each 0 validated each "$work/metal.test"
step validated-tests 0 validated go test -count=1 ./cmd/llmrun ./internal/metal

for model in tiny-gemma2 tiny-qwen2; do
  for type in float32 float16 bfloat16; do
    step "compare-$model-$type" 0 "$llmrun" compare --model $model --compute-type $type --json -o "$out/compare-$model-$type.json" --html "$out/compare-$model-$type.html" -v
  done
  step "mps-$model" 0 "$llmrun" compare --model $model --metal-gemm mps --json -o "$out/mps-$model.json" -v
  step "trace-$model" 0 trace $model
done
# The first story: a fast tanh without its clamp is NaN in layer 7. That the clamp alone mends it under fast math is TestGELUClamp.
step story-unclamped 1 "$llmrun" compare --fault gelu-unclamped --html "$out/story-unclamped.html"
step story-as-shipped 0 "$llmrun" compare
step faults 0 catalogue

step speed-metal 0 go test -run '^$' -bench . -benchtime 0.5s -timeout 20m ./internal/metal
step speed-cpu 0 go test -run '^$' -bench 'Rows/896x896' -benchtime 0.2s ./internal/cpuref/kernel
step speed-tokens 0 "$llmrun" generate --device metal -p "Once upon a time" -n 200 --ignore-eos
for device in cpu metal; do
  step "speed-bench-$device" 0 "$llmrun" bench --device $device --profile
done

{
  echo "what each op uses of its bound"
  grep -h 'of its bound' "$out/ops-errors.txt"
  echo "ulp of the precise functions"
  grep -h 'ulp at worst' "$out/assume.txt"
  echo "bytes a second"
  grep -h '^Benchmark' "$out/speed-metal.txt"
  echo "assumptions refuted"
  grep -h -e '^--- FAIL' "$out/assume.txt"
} >"$out/summary.txt" 2>/dev/null
tar -czf "$root/$name.tar.gz" -C "$work" "$name" || exit 2
printf '\n%d steps did not end as they should. Send back %s\n' "$failed" "$root/$name.tar.gz"
[ "$failed" -eq 0 ]
