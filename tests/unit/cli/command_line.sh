#!/bin/sh
# command_line.sh LONGHAUL FIXTURES: exit codes, and that a refusal is one line on stderr and nothing on
# stdout.
set -eu
longhaul=$1 fixtures=$2
examples=$(cd "$(dirname "$0")/../../../examples" && pwd)
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
echo '{"text": "x"}' >a.jsonl
echo '{}' >vocab.json
# Who asks for ops loads every plugin, and one of the fixtures hangs until its time is over: `plugins` sees that.
few=$work/few
mkdir -p "$few/parts"
cp "$fixtures/parts/acme.so" "$few/parts"
chmod go-w "$few" "$few/parts" "$few/parts/acme.so"
printf '[pipeline]\nname = \033]0;evil\007\n' >hostile.ini

expect 0 '^longhaul [0-9]' --version
expect 0 '^  check ' help
expect 0 'keys of' help acme --plugins "$fixtures"
expect 0 '^\[train\]' help train
expect 0 '^matmul  *the product of two matrices' help op
expect 0 '^acme.swish .*(plugin acme)' help op --plugins "$few"
expect 0 '^  c: \[m, n\]' help op matmul
expect 0 '^  gbias = sum_rows(g)' help op matmul
expect 0 '^  transpose_a ' help op matmul
expect 0 'op acme.swish: x -> y' help op acme.swish --plugins "$few"
refuse 1 "no op 'matmull'; did you mean 'matmul'" help op matmull
refuse 1 "no op 'acme.swosh'; did you mean 'acme.swish'" help op acme.swosh --plugins "$few"
refuse 2 'bench device: --ranks belongs to bench collectives' bench device --ranks 4
refuse 2 "bench measures: device, collectives, links; not 'loops'" bench loops
expect 0 '^keys of \[parts.NAME\]:' help plugin acme --plugins "$fixtures"
"$longhaul" help acme --plugins "$fixtures" | cmp - out || failures=$((failures + 1))
refuse 1 "no plugin 'acne' in .*; did you mean 'acme'" help plugin acne --plugins "$fixtures"
refuse 1 "no plugin 'train' in .*; there are: .*\<acme\>" help plugin train --plugins "$fixtures" # a section
refuse 1 'help plugin: name one of those in .*: .*\<acme\>' help plugin --plugins "$fixtures"
refuse 1 'no plugin lies in ' help plugin acme --plugins "$work"
refuse 1 "'train' has no members" help train x
refuse 2 'one argument too many' help op matmul x
expect 0 '^  warmup_cosine  ' help functions
expect 0 '^rule rules:muon  ' help rules
expect 0 '^keys of \[rule.adafactor\]:' help rules
expect 0 '^\[optimizer\] learning_rate  gives ' help hooks
expect 0 '^\[hook.before_save\] call  gives ' help hooks
expect 0 '^longhaul train PIPELINE.ini ' train --help
expect 0 '^  --resume ' train none.ini --help # which is not looked for
expect 0 'stages  *= prepare  *; a.ini:3' check a.ini
expect 0 'workers  *= 3  *; command line' check a.ini --set prepare.workers=3
expect 1 'not usable: .*built for ABI 3.0' plugins --plugins "$fixtures"
cat >some.ini <<INI
include = a.ini
[model]
plugin = llama
vocab = 64
blocks = 1
hidden = 8
heads = 1
ffn = 8
[optimizer]
plugin = zero0
rule = rules:adamw
learning_rate = 1e-3
INI
expect 0 'blocks  *= 1' check some.ini # which does not train
# What an hour of stages later would be refused.
shown=$examples/shakespeare.ini
late() { # PATTERN SETTING
    refuse 1 "$1" check "$shown" --set "pipeline.folder=$work/made" --set "$2"
}
expect 0 'stages ' check "$shown" --set "pipeline.folder=$work/made"
late 'train = corpus is read by train, which comes before prepare' 'pipeline.stages=train prepare'
late "no file matches '.*none.jsonl'" prepare.input=none.jsonl
late 'tokenizer = .*none.json: not there' prepare.tokenizer=none.json
late "'nan' is no weight" 'data.train=a:nan, b:1'
late 'train = other: .*/made/other.idx is not there, and no stage makes it' data.train=other
late 'valid = other: .*/made/other.idx is not there' data.valid=other
late 'data = .*none.jsonl: not there' eval.data=none.jsonl
late 'tokenizer = .*none.json: not there' eval.tokenizer=none.json
late 'prompts = .*none.txt: not there' generate.prompts=none.txt
late 'stages = ... eval: it reads a checkpoint; .*/made/checkpoints is not there, and no stage before trains or imports' 'pipeline.stages=prepare eval train'
late 'stages = ... export: it reads a checkpoint' 'pipeline.stages=prepare export'
late 'chat = yes: .chat. format is not set' generate.chat=yes
mkdir -p "$work/empty/checkpoints"
refuse 1 "some.ini: \[generate\] ids '5,x': token ids separated by commas are expected, not 'x'" check some.ini \
    --set pipeline.stages=generate --set "pipeline.folder=$work/empty" --set generate.ids=5,x --set device.plugin=cpu
imports=$examples/continued.ini
expect 0 'stages ' check "$imports" --set "pipeline.folder=$work/made"
refuse 1 'from = .*data/stories260K: nothing is imported yet, and no stage before train imports it' check "$imports" \
    --set "pipeline.folder=$work/made" --set 'pipeline.stages=prepare train import'
refuse 1 'adapter = .*/none: not there' check "$examples/lora.ini" --set "pipeline.folder=$work/made" --set import.adapter=none
refuse 1 'tokenizer = .*/none.json: not there' check "$imports" --set "pipeline.folder=$work/made" \
    --set 'pipeline.stages=import generate' --set prepare.tokenizer=none.json
late 'sequence = 257, the model is made for 256 tokens' train.sequence=257
late 'tokens = 256 behind a prompt; the model is made for 256' generate.tokens=256
late "is or holds the pipeline's folder" export.folder=.
late "is or holds the pipeline's folder" export.folder=..
late 'is or holds the checkpoints' export.folder=checkpoints
# What nobody wants to hear of after a loss: of two equal halves neither goes on.
halves() { # PATTERN SETTING...
    pattern=$1
    shift
    expect 0 "$pattern" check "$examples/two-sites.ini" --set "pipeline.folder=$work/made" --set launch.restart=3 "$@"
}
lost='is lost, the others are half of the ranks'
halves "^warning: \[launch\] neither prefer nor witness is set: if site tokyo $lost" --set launch.go_on_with=sites
halves "^warning: .* if host t1 $lost" --set launch.go_on_with=ranks --set 'site.tokyo.hosts=t1:2, t2:1' --set site.osaka.hosts=o1:1
for decides in launch.prefer=osaka launch.witness=w1 launch.go_on_with=none 'site.tokyo.hosts=localhost:6'; do
    halves stages --set launch.go_on_with=sites --set "$decides"
    if grep -q "$lost" err; then
        echo "longhaul check warns of halves with $decides"
        failures=$((failures + 1))
    fi
done
refuse 1 'a.ini:2: unknown\|unknown key' check a.ini --set prepare.worker=3
refuse 1 "missing.ini: cannot read: No such file" check missing.ini
refuse 1 'control character 0x1b' check hostile.ini
refuse 1 "is no command, section or plugin" help nothing_like_it
refuse 2 "did you mean 'check'" chek a.ini
refuse 2 'name a PIPELINE.ini' check
expect 2 'usage: longhaul'
[ -c /dev/full ] && { got=0; "$longhaul" help >/dev/full 2>err || got=$?; [ $got = 1 ] || { echo "help >/dev/full: exit $got"; failures=$((failures + 1)); }; }
[ $failures = 0 ]
