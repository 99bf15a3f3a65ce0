#!/bin/sh
# The stages of run.sh fit into 8 minutes, and all that were asked for are there.
found=$(bash "$(dirname "$0")/run.sh" --list)
sum=$(printf '%s\n' "$found" | awk '$1 != "sum" { sum += $2 } END { print sum }')
echo "1..2"
if [ "$sum" -le 480 ]; then echo "ok 1 - the limits of all stages add up to 8 minutes at most"
else echo "not ok 1 - the limits of all stages add up to $sum s, allowed are 480"; fi
missing=
for name in build float32 tf32 bf16 golden ledger killed memcheck; do
    printf '%s\n' "$found" | grep -q "^$name " || missing="$missing $name"
done
if [ -z "$missing" ]; then echo "ok 2 - every stage is there"
else echo "not ok 2 - missing:$missing"; fi
[ "$sum" -le 480 ] && [ -z "$missing" ]
