#!/bin/bash
# What run.sh does around its stages, with programs that only say that they were called in place of the real ones: all
# stages are there and fit into calls of ten minutes, each command is found, a stage that fails is reported and keeps no other from
# running, and what came of it is written down.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
number=0 failed=0
echo "1..14"
check() { # name, then a command that must succeed
    local name=$1; shift
    number=$((number + 1))
    if "$@" >"$work/why" 2>&1; then echo "ok $number - $name"; return; fi
    echo "not ok $number - $name"
    { cat "$work/why"; tail -n 60 "$work/out"; } | sed 's/^/# /'
    failed=1
}

# ---- a repository of stand-ins -----------------------------------------------------------------

mkdir -p "$work/repo/tests/gpu" "$work/repo/tests/support" "$work/build/bin" "$work/build/tests" "$work/bin" "$work/results"
cp "$root"/tests/gpu/run.sh "$root"/tests/gpu/record.py "$work/repo/tests/gpu/"
cp "$root"/tests/support/provenance.py "$work/repo/tests/support/"
mkdir -p "$work/repo/common/data/sets" "$work/repo/common/sim/profiles"
cp "$root/common/data/sets/wine_data.csv" "$work/repo/common/data/sets/"
cp "$root/common/sim/profiles/cuda.json" "$work/repo/common/sim/profiles/"
run="$work/repo/tests/gpu/run.sh"
stand_in() { # file, then what it does after noting its call
    local file=$1; shift
    { echo '#!/bin/sh'; echo "echo \"\$(basename \"\$0\") \$*\" >>'$work/calls'"; printf '%s\n' "$@"; } >"$file"
    chmod +x "$file"
}
for name in operations operations_tf32 operations_bf16 semantics optimizers syncbatchnorm device libraries powersgd; do
    stand_in "$work/build/tests/test_cuda_$name" 'echo "ok 1 - it was called"'
done
stand_in "$work/build/tests/bench_cuda" 'echo "{}"'
stand_in "$work/build/bin/bench_ops" 'echo operations'
# shellcheck disable=SC2016
stand_in "$work/build/bin/harness" 'case $1 in doctor) echo "device cuda            usable"; echo "GPU 0                  Test GPU, 1 GiB" ;;' \
    '*) while [ $# -gt 1 ]; do case $1 in --json | --out) echo "{}" >"$2" ;; esac; shift; done ;; esac'
stand_in "$work/bin/compute-sanitizer" 'while [ "$1" != "${1#--}" ]; do shift 2; done; exec "$@"'
stand_in "$work/bin/cmake" ''
# Tests are called and not run; the other scripts leave their file, record.py is the real one.
# shellcheck disable=SC2016
stand_in "$work/bin/python" 'for word in "$@"; do case $out in --out) echo "{}" >"$word" ;; esac; out=$word; done' \
    "case \"\$*\" in *test_cuda_ps*/6*) [ ! -e '$work/hang' ] || { echo 'ok 1 - the first'; sleep 60; } ;; esac" \
    'case "$*" in *tests/gpu/test_cuda_*) echo "ok 1 - $*" ;; *record.py*) exec python3 "$@" ;; esac'
call() { # words of run.sh
    PATH="$work/bin:$PATH" bash "$run" --python python --build "$work/build" --out "$work/results" --commit abc123 "$@" >"$work/out" 2>&1
    code=$?
}
record() { # a Python expression over the newest record, r, and its rows by stage, s
    python3 -c "import glob, json, sys
r = json.load(open(sorted(glob.glob('$work/results/checks-*.json'))[-1]))
s = {row['stage']: row for row in r['stages']}
sys.exit(0 if ($1) else repr(r))"
}

# ---- checks ------------------------------------------------------------------------------------

list=$(bash "$run" --list)
check "the limits of a call, and what the first leaves to PyTorch, add up to ten minutes at most" \
    [ "$(printf '%s\n' "$list" | awk '$3 == "first" && $2 { a += $2 } $3 == "later" { b += $2 } END { print (a + 220 > b ? a + 220 : b) }')" -le 570 ]
check "those of --speed fit into ten minutes each" \
    [ "$(printf '%s\n' "$list" | awk '/--speed/ && $2 > 570' | wc -l)" -eq 0 ]

call --speed # 20 stages
every='build float32 tf32 bf16 kernels golden ledger nccl anatomy engines ps killed memcheck racecheck bandwidth step calibrate profile predict speed'
all_ran() { # each once, and all that they call
    local name
    for name in $every; do grep -q "^ok  *$name " "$work/out" || { echo "$name did not run"; return 1; }; done
    [ $code -eq 0 ] || { echo "exit code $code"; return 1; }
    for name in operations operations_tf32 operations_bf16 semantics optimizers syncbatchnorm device libraries powersgd; do
        grep -q "^test_cuda_$name" "$work/calls" || { echo "test_cuda_$name was not called"; return 1; }
    done
    [ "$(grep -c "^bench_ops resnet50 --batch 128 --device cuda --precision" "$work/calls")" -eq 3 ] &&
        [ "$(grep -c "^bench_ops bert_large --batch 16 --device cuda --precision bf16" "$work/calls")" -eq 2 ]
}
check "every stage runs what belongs to it" all_ran
check "results are there, and name the commit" record "r['provenance']['commit'] == 'abc123' and len(s) == 20 and s['float32']['tests']['passed'] == 1 and s['golden']['tests']['passed'] == 10"
files() {
    local name
    for name in checks bandwidth step profile operations predictions speed; do grep -q '"provenance"' "$work/results/$name-Test-GPU"-*.json || return 1; done
}
check "each measurement is a file with its provenance" files

stand_in "$work/build/tests/test_cuda_operations_tf32" 'echo "not ok 1 - a product"; echo "# 1 instead of 2"; exit 1'
stand_in "$work/build/tests/bench_cuda" 'sleep 60'
rm "$work"/results/*
sed -i 's/bandwidth:20/bandwidth:1/; s/ps:270/ps:2/' "$run"
touch "$work/hang"
call # 17 stages
rm "$work/hang"
others_ran() {
    [ $code -eq 1 ] && [ "$(grep -c '^ok ' "$work/out")" -eq 15 ] && grep -q '^FAILED   tf32: exit code 1 ' "$work/out" &&
        grep -q '1 instead of 2' "$work/out" && grep -q 'alone: .*--only tf32' "$work/out" && grep -q 'bandwidth: exit code 124, out of time' "$work/out"
}
check "a stage that fails or hangs prints what to look at, and the others run" others_ran
check "a failure is written down" record "s['tf32']['exit_code'] == 1 and s['tf32']['tests']['failed'] == 1 and s['bandwidth']['exit_code'] == 124"
check "of a stage that hangs it is written down what had passed" record "s['ps']['exit_code'] == 124 and s['ps']['tests']['passed'] == 6"

stand_in "$work/build/tests/test_cuda_operations_tf32" 'echo "ok 1 - a product"'
: >"$work/calls"
call --only step,tf32
alone() { [ $code -eq 0 ] && [ "$(grep -c '^ok ' "$work/out")" -eq 2 ] && ! grep -q cmake "$work/calls"; }
check "stages that are named run alone, and nothing is built" alone
sleep 1
record_is_kept() { record "len(s) == 18 and s['tf32']['exit_code'] == 0 and s['bandwidth']['exit_code'] == 124"; }
check "what was recorded before stays" record_is_kept

rm "$work"/results/*
stand_in "$work/build/tests/bench_cuda" 'echo "{}"'
call --call first
first_ran() {
    local name
    [ $code -eq 0 ] || { echo "exit code $code"; return 1; }
    for name in float32 bf16 kernels bandwidth step profile calibrate speed; do grep -q "^ok  *$name " "$work/out" || return 1; done
    ! grep -qE "^(ok|FAILED)  *(golden|build|engines) " "$work/out" && tar -tzf "$work/results"/logs-Test-GPU-*.tar.gz | grep -q float32.log
}
check "the first call runs what shows most, and leaves its logs with the results" first_ran
call --call later
later_ran() { [ $code -eq 0 ] && grep -q '^ok  *golden ' "$work/out" && ! grep -qE '^ok  *(float32|speed|ps) ' "$work/out"; }
check "the later call runs the rest but for the last" later_ran
call --call last
last_ran() { [ $code -eq 0 ] && [ "$(grep -cE '^ok  *(anatomy|engines|ps) ' "$work/out")" -eq 3 ] && [ "$(grep -c '^ok ' "$work/out")" -eq 3 ]; }
check "the last call runs what has ranks that meet on the GPU" last_ran

cp /bin/true "$work/build/bin/harness"
cp /bin/true "$work/build/bin/bench_ops"
cp /bin/true "$work/build/tests/bench_cuda"
cp /bin/true "$work/build/tests/at_operation"
find "$work/build/tests" -name 'test_cuda_*' -exec cp /bin/true {} ';'
call --pack "$work/packed"
packed() { [ $code -eq 0 ] && [ "$(cat "$work/packed/packed")" = abc123 ] && [ -x "$work/packed/bin/harness" ] && [ -r "$work/packed/share/psring/wine_data.csv" ] && [ -r "$work/packed/share/psring/profiles/cuda.json" ] && "$work/packed/tests/test_cuda_device"; }
check "programs are packed to be taken along" packed
exit $failed
