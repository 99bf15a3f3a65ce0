#!/bin/sh
# manual-pages.sh PROGRAM DIR: writes DIR/harness.1.gz, DIR/harness-COMMAND.1.gz and the same pages for psring, from the
# program's own help.
set -eu
program=$1 dir=$2
rm -rf "$dir"
mkdir -p "$dir"
page() { # name summary help-words
    help2man --no-info --name="$2" --help-option="$3" --version-option=--version --no-discard-stderr --output="$dir/$1.1" "$program"
}
page harness "data-parallel training by parameter server or ring all-reduce" --help
"$program" --help | awk '/^commands:/ { list = 1; next } list && /^  [a-z]/ { print; next } list { exit }' |
    while read -r command summary; do page "harness-$command" "$summary" "$command --help=all"; done
for file in "$dir"/harness*.1; do
    name=${file##*/}
    printf '.so man1/%s\n' "$name" >"$dir/psring${name#harness}"
done
gzip -9nf "$dir"/*.1
