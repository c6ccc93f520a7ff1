#!/bin/sh
# command_line.sh LONGHAUL FIXTURES: exit codes, and that a refusal is one line on stderr and nothing on
# stdout.
set -eu
longhaul=$1 fixtures=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
failures=0

expect() { # CODE PATTERN ARGUMENT...
    code=$1 pattern=$2
    shift 2
    got=0
    "$longhaul" "$@" >out 2>err || got=$?
    if [ "$got" != "$code" ] || ! cat out err | grep -qe "$pattern"; then
        echo "longhaul $*: exit $got, expected $code and '$pattern':"
        cat out err
        failures=$((failures + 1))
    fi
}

refuse() { # CODE PATTERN ARGUMENT...
    expect "$@"
    if [ -s out ] || [ "$(grep -c '^longhaul: ' err)" != 1 ]; then
        echo "a refusal is one line on stderr, not:"
        cat out err
        failures=$((failures + 1))
    fi
}

cat >a.ini <<INI
[pipeline]
name = x
stages = prepare
[prepare]
input = a.jsonl
tokenizer = vocab.json
INI
printf '[pipeline]\nname = \033]0;evil\007\n' >hostile.ini

expect 0 '^longhaul [0-9]' --version
expect 0 '^  check ' help
expect 0 'keys of' help acme --plugins "$fixtures"
expect 0 '^\[train\]' help train
expect 0 'stages  *= prepare  *; a.ini:3' check a.ini
expect 0 'workers  *= 3  *; command line' check a.ini --set prepare.workers=3
expect 1 'not usable: .*built for ABI 2.0' plugins --plugins "$fixtures"
refuse 1 'a.ini:2: unknown\|unknown key' check a.ini --set prepare.worker=3
refuse 1 "missing.ini: cannot read: No such file" check missing.ini
refuse 1 'control character 0x1b' check hostile.ini
refuse 1 "is no command, section or plugin" help nothing_like_it
refuse 2 "did you mean 'check'" chek a.ini
refuse 2 'name a PIPELINE.ini' check
expect 2 'usage: longhaul'
[ -c /dev/full ] && { got=0; "$longhaul" help >/dev/full 2>err || got=$?; [ $got = 1 ] || { echo "help >/dev/full: exit $got"; failures=$((failures + 1)); }; }
[ $failures = 0 ]
