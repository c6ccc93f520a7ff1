/* job.c - the sections of a job: the option tables by which they are read, and questions to a job
 * that has been read.
 *
 * The tables are long and dull on purpose: an option is one line here, with its default, its range
 * and its help, and nothing else in the program repeats any of these. Macros only shorten the
 * SDK's, whose first arguments are the struct and the field. */
#include <config/job.h>

#include <stdio.h>

#include <longhaul/link.h>

#include <base/file.h>
#include <base/memory.h>

/* Bits of the stages that need a section; a required key of it may be missing where none of them is
 * in the job. */
#define PREPARE (1u << STAGE_PREPARE)
#define IMPORT (1u << STAGE_IMPORT)
#define TRAIN (1u << STAGE_TRAIN)
#define EVAL (1u << STAGE_EVAL)
#define EXPORT (1u << STAGE_EXPORT)
#define GENERATE (1u << STAGE_GENERATE)
#define ALL (PREPARE | IMPORT | TRAIN | EVAL | EXPORT | GENERATE)

/* fallback NULL: the key is required. "": it may be left out, and the field is NULL. */
/* clang-format off */
#define TEXT(S, f, fallback, help) LH_OPTION_STRING(S, f, #f, fallback, help)
#define PATH(S, f, fallback, help) LH_OPTION_PATH(S, f, #f, fallback, help)
#define WHOLE(S, f, fallback, range, help) LH_OPTION_U64(S, f, #f, fallback, range, help)
#define BYTES(S, f, fallback, range, help) LH_OPTION_BYTES(S, f, #f, fallback, range, help)
#define REAL(S, f, fallback, range, help) LH_OPTION_F64(S, f, #f, fallback, range, help)
#define YES_NO(S, f, fallback, help) LH_OPTION_BOOL(S, f, #f, fallback, help)
#define CHOICE(S, f, fallback, range, help) LH_OPTION_CHOICE(S, f, #f, fallback, range, help)

/* Rows in the order in which `check` prints them. */
static const lh_option_t pipeline_rows[] = {
    TEXT(job_pipeline_t, name, NULL, "what reports and files call this job"),
    TEXT(job_pipeline_t, stages, NULL,
         "what run does, in order: prepare import train eval export generate"),
    PATH(job_pipeline_t, folder, "", "where everything is written; out/NAME if not set"),
};

/* Input stays a list of patterns here; data/input_lines.h finds the files. */
static const lh_option_t prepare_rows[] = {
    TEXT(job_prepare_t, input, NULL,
         "JSONL files or globs, comma-separated; .jsonl, .jsonl.gz, .jsonl.zst"),
    TEXT(job_prepare_t, key, "text", "key of each line's object that holds the document"),
    PATH(job_prepare_t, tokenizer, NULL,
         "vocab.json (merges.txt beside it), tokenizer.json, tokenizer.model, tokenizer.bin, "
         "tiktoken ranks, or their folder"),
    CHOICE(job_prepare_t, prepend, "none", "none|bos", "token put before each document"),
    CHOICE(job_prepare_t, append, "eod", "none|eod|eos", "token put behind each document"),
    TEXT(job_prepare_t, on_error, "fail", "what a bad line does: fail, skip or max:N"),
    TEXT(job_prepare_t, output, "corpus", "name of the data set, without .bin and .idx"),
    WHOLE(job_prepare_t, workers, "0", "0..1024",
          "threads that tokenize; 0: as many as processors"),
    TEXT(job_prepare_t, accept, "", "call of a filter: a document for which it gives 0 is dropped"),
};

/* In the parts \n, \t, \s (a blank) and \\ are what they are in C, and {content}, {system}, {bos} and
 * {eos} what they say. */
static const lh_option_t chat_rows[] = {
    CHOICE(job_chat_t, format, "none",
           JOB_CHAT_FORMATS,
           "what stands around messages; none: lines are documents"),
    YES_NO(job_chat_t, pairs, "no", "lines have two answers, of which one was chosen: phase dpo"),
    TEXT(job_chat_t, messages, "messages", "key of a line's list of {role, content}"),
    TEXT(job_chat_t, prompt, "prompt", "key of the prompt, where a line has no messages"),
    TEXT(job_chat_t, answer, "answer", "key of its answer"),
    TEXT(job_chat_t, chosen, "chosen", "with pairs, key of the better answer: a text or messages"),
    TEXT(job_chat_t, rejected, "rejected", "key of the other"),
    TEXT(job_chat_t, begin, "", "before the first message, in place of the format's"),
    TEXT(job_chat_t, system, "", "a system message: text with {content}; likewise"),
    TEXT(job_chat_t, user, "", "a user's message; likewise"),
    TEXT(job_chat_t, reply, "", "an answer: {content} and what follows it is trained on; likewise"),
    TEXT(job_chat_t, tail, "", "behind an answer, not trained on; likewise"),
    TEXT(job_chat_t, joined, "",
         "a user's message with a system message in it, {system}, where the format has no place of "
         "its own for that: the first one's, with mistral the last one's; likewise"),
};

/* Defaults are Megatron's where Megatron has the option, so that a data set is cut and shuffled as
 * there. */
static const lh_option_t data_rows[] = {
    TEXT(job_data_t, train, "corpus", "data set, or several with weights: a:0.7, b:0.3"),
    TEXT(job_data_t, valid, "", "data set to evaluate on, instead of a part of train"),
    TEXT(job_data_t, test, "", "data set to test on, instead of a part of train"),
    TEXT(job_data_t, split, "969,30,1", "parts of train used as train, valid and test"),
    CHOICE(job_data_t, documents, "joined", "joined|apart",
           "whether attention and positions run on over documents in a sequence"),
    WHOLE(job_data_t, seed, "1234", "0..4294967295", "of the order of samples"),
    TEXT(job_data_t, skip, "", "batches, from 1, that are not trained on: 1000..1200, 4000..4010"),
    YES_NO(job_data_t, packing, "yes", "phases sft, dpo: several conversations in a sequence"),
    CHOICE(job_data_t, too_long, "fail", "fail|skip|cut",
           "phases sft, dpo: what a conversation, or a pair, does that is longer than a sequence"),
};

/* vocab is text, as it may be a number or where to take it from; the plugin's own table has a row
 * of that name for the number. */
static const lh_option_t model_rows[] = {
    TEXT(job_model_t, plugin, NULL, "model plugin, from_import or spec"),
    TEXT(job_model_t, vocab, "from_tokenizer",
         "rows of the embedding: from_tokenizer, from_import or a number"),
    WHOLE(job_model_t, vocab_multiple, "64", "1..65536",
          "rows are rounded up to a multiple of this"),
    TEXT(job_model_t, ops, "", "plugins loaded for their ops, comma-separated"),
    REAL(job_model_t, init_std, "0.02", "0..10", "standard deviation of new weights"),
};

/* Upper ends of sequence and batch keep their product within 2^48, so sums of tokens need no checks
 * elsewhere. */
static const lh_option_t train_rows[] = {
    WHOLE(job_train_t, sequence, NULL, "1..16777216", "tokens of a sequence"),
    WHOLE(job_train_t, batch, NULL, "1..16777216", "sequences a step, over all ranks"),
    WHOLE(job_train_t, micro_batch, "0", "0..16777216",
          "sequences a rank holds at once; 0: the whole batch"),
    CHOICE(job_train_t, phase, "pretrain", "pretrain|sft|dpo",
           "train on every token, on the answers of conversations, or on pairs of answers"),
    WHOLE(job_train_t, steps, NULL, NULL, "steps to train; 0 only saves the start weights"),
    WHOLE(job_train_t, seed, "1", NULL, "of new weights and of everything random in a step"),
    CHOICE(job_train_t, precision, "bf16", "bf16|f32", "dtype of compute; master weights are f32"),
    CHOICE(job_train_t, recompute, "none", "none|selective|full",
           "what is computed again in the backward pass instead of kept"),
    WHOLE(job_train_t, evaluate_every, "0", NULL, "steps between evaluations; 0: never"),
    WHOLE(job_train_t, evaluate_batches, "0", NULL,
          "micro-batches of an evaluation; 0: as many as the valid part fills"),
    CHOICE(job_train_t, logits, "f32", "f32|compute",
           "dtype of logits in training and evaluation; compute: that of precision, in half the memory"),
    WHOLE(job_train_t, head_chunk, "0", NULL, "tokens whose logits exist at a time; 0: choose"),
    WHOLE(job_train_t, max_documents, "0", NULL,
          "documents in a micro-batch when they are apart; 0: choose"),
    WHOLE(job_train_t, not_finite_limit, "10", "1..",
          "steps in a row that may be refused as not finite"),
    WHOLE(job_train_t, log_every, "10", "1..", "steps between lines of progress in files"),
    YES_NO(job_train_t, same_bits, "yes",
           "refuse to resume where other kernels would give other bits"),
    YES_NO(job_train_t, deterministic, "yes",
           "only kernels that give the same bits every time; no: also faster ones of the device that "
           "sum in another order each time"),
};

static const lh_option_t dpo_rows[] = {
    REAL(job_dpo_t, beta, "0.1", "0..1000", "how much a change of log-probability counts; above 0"),
    PATH(job_dpo_t, reference, "",
         "folder of checkpoints of the model that is compared with; what the run starts from if not "
         "set"),
};

/* learning_rate has no default: none is right for every model. */
static const lh_option_t optimizer_rows[] = {
    TEXT(job_optimizer_t, plugin, NULL, "optimizer plugin: who holds which slice of what"),
    TEXT(job_optimizer_t, rule, NULL, "update rule, as plugin:rule"),
    REAL(job_optimizer_t, decay, "0", "0..", "weight decay of parameters that are not exempt"),
    REAL(job_optimizer_t, clip, "1", "0..", "largest global gradient norm; 0: any"),
    TEXT(job_optimizer_t, learning_rate, NULL,
         "a number, or a call such as warmup_cosine(step, peak=1e-3, warmup=50, total=1000)"),
};

/* What is here serves whoever looks on; nothing of it changes a run. */
static const lh_option_t watch_rows[] = {
    TEXT(job_watch_t, metrics, "",
         "HOST:PORT, or :PORT of all addresses, where Prometheus finds the run's figures"),
    PATH(job_watch_t, textfile, "",
         "a file of the same figures, NAME.prom, in the folder that a node exporter reads"),
    CHOICE(job_watch_t, log, "info", "debug|info|warning|error",
           "the least that lines on the terminal and in logs must matter"),
    LH_OPTION_DURATION(job_watch_t, report_ns, "report", "60s", "0s..1d",
                       "between renewals of report.html while it trains; 0s: at the end alone"),
};

/* At least two are kept, so that a damaged one has another to go back to. */
static const lh_option_t checkpoint_rows[] = {
    WHOLE(job_checkpoint_t, every, "0", NULL, "steps between checkpoints; 0: only at the end"),
    WHOLE(job_checkpoint_t, keep, "3", "2..", "newest checkpoints that are kept"),
    WHOLE(job_checkpoint_t, keep_every, "0", NULL,
          "those of steps that are a multiple of this are kept for good, too; 0: none"),
    YES_NO(job_checkpoint_t, keep_best, "no",
           "so is the one with the least held-out loss, of steps that evaluate_every evaluates"),
    WHOLE(job_checkpoint_t, memory_every, "0", NULL,
          "steps between snapshots that stay in memory, of the own machine and of another one, for "
          "ranks that start again; 0: none"),
    TEXT(job_checkpoint_t, folder, "checkpoints", "where they lie"),
    LH_OPTION_DURATION(job_checkpoint_t, deadline_ns, "deadline", "600s", "1s..1d",
                       "a save that takes longer is given up, and training goes on"),
    LH_OPTION_DURATION(job_checkpoint_t, patience_ns, "patience", "5s", "0s..1d",
                       "longest that training stands still for a save that is not yet written"),
};

/* The plugin's own keys (threads, index and the like) stand in the same section and are parsed by
 * its table. */
static const lh_option_t device_rows[] = {
    TEXT(job_device_t, plugin, NULL, "device plugin"),
    PATH(job_device_t, plugin_folder, "",
         "folder of all plugins; lib/longhaul beside the program's folder if not set"),
    YES_NO(job_device_t, tune, "no",
           "kernels may time what they choose from, once for each device: choices are kept in the "
           "user's cache folder, and all ranks take rank 0's"),
};

static const lh_option_t import_rows[] = {
    PATH(job_import_t, from, NULL, "Hugging Face folder to take weights from"),
    PATH(job_import_t, adapter, "", "PEFT folder to take the values of [adapter.NAME] from"),
};

/* data is a word or a file, so it is text here and becomes a path in job_load.c. */
static const lh_option_t eval_rows[] = {
    TEXT(job_eval_t, data, "valid", "train, valid, test or a JSONL file"),
    WHOLE(job_eval_t, tokens_per_document, "0", NULL,
          "tokens after which a document is cut; 0: never"),
    YES_NO(job_eval_t, bos, "no", "documents start with the begin token"),
    TEXT(job_eval_t, key, "text", "key of each line's object that holds the document"),
    PATH(job_eval_t, tokenizer, "",
         "tokenizer of a JSONL file; that of [prepare] or [import] if not set"),
};

/* A shard is closed before it would grow past shard_bytes. */
static const lh_option_t export_rows[] = {
    TEXT(job_export_t, folder, "hf", "Hugging Face folder to write"),
    CHOICE(job_export_t, dtype, "as_imported", "as_imported|f32|bf16|f16", "dtype of the weights"),
    CHOICE(job_export_t, adapter, "merged", "merged|separate",
           "what becomes of [adapter.NAME]: added to the weights, or alone in PEFT's format"),
    BYTES(job_export_t, shard_bytes, "5GB", "4KiB..",
          "tensors of a file of weights, at most; a larger tensor has a file of its own"),
};

/* The same rows bound the flags of `longhaul generate`, which looks its ranges up here. */
static const lh_option_t generate_rows[] = {
    TEXT(job_generate_t, prompt, "", "text to go on from"),
    TEXT(job_generate_t, ids, "", "token ids to go on from, comma-separated, instead of a prompt"),
    PATH(job_generate_t, prompts, "", "JSONL file with a prompt, or messages, a line, instead of one"),
    WHOLE(job_generate_t, batch, "8", "1..4096", "prompts of that file that are continued at once"),
    YES_NO(job_generate_t, chat, "no", "prompts are what a user says, in the format of [chat]"),
    WHOLE(job_generate_t, tokens, "64", "1..1M", "tokens to generate"),
    YES_NO(job_generate_t, greedy, "no", "always take the likeliest token"),
    REAL(job_generate_t, temperature, "1", "0..100", "under 1 likelier tokens get likelier"),
    REAL(job_generate_t, top_p, "1", "0..1",
         "draw from the likeliest tokens that together have this probability"),
    WHOLE(job_generate_t, top_k, "0", NULL, "draw from this many likeliest tokens; 0: all"),
    WHOLE(job_generate_t, seed, "1", NULL, "of the drawing"),
    YES_NO(job_generate_t, bos, "no", "the prompt starts with the begin token"),
};

/* Bounds on what a file from outside may make a parser allocate. The defaults are far above what
 * honest files need. */
static const lh_option_t limits_rows[] = {
    BYTES(job_limits_t, line_bytes, "64MiB", "1KiB..1GiB", "longest line of a JSONL file"),
    BYTES(job_limits_t, window_bytes, "2GiB", "1KiB..2GiB", "window of a zstd file"),
    BYTES(job_limits_t, header_bytes, "16MiB", "1KiB..100MB",
          "longest header of a safetensors file"),
    WHOLE(job_limits_t, tensors, "1M", "1..100M", "tensors of a set of weights"),
    WHOLE(job_limits_t, shards, "100k", "1..1M", "files of a set of weights"),
    WHOLE(job_limits_t, vocabulary, "4M", "1..100M", "tokens of a tokenizer"),
    BYTES(job_limits_t, token_bytes, "4KiB", "1..1MiB", "longest token of a tokenizer"),
    WHOLE(job_limits_t, merges, "8M", "1..100M", "merges of a tokenizer"),
    BYTES(job_limits_t, tokenizer_bytes, "256MiB", "1KiB..1GiB", "each file of a tokenizer"),
    BYTES(job_limits_t, plugin_bytes, "256MiB", "4KiB..1GiB", "largest file of a plugin"),
};

/* secret is hidden by `check` until its file is there, since it might be the key itself. */
static const lh_option_t launch_rows[] = {
    WHOLE(job_launch_t, ranks_per_node, "1", "1..4096",
          "ranks of a machine; of a host whose number [site.NAME] does not say"),
    YES_NO(job_launch_t, bind, "yes",
           "each rank to its own share of its machine's processors; to one of them where there are "
           "more ranks"),
    PATH(job_launch_t, secret, "",
         "file with the job's key (mode 0600, made at the first start); several machines need it"),
    TEXT(job_launch_t, address, "",
         "host or number where rank 0 listens, which is on the first host; its own machine if not set"),
    WHOLE(job_launch_t, port, "0", "0..65535", "where rank 0 listens; 0: one that is free"),
    LH_OPTION_DURATION(job_launch_t, join_timeout_ns, "join_timeout", "60s", "1s..1d",
                       "how long ranks wait for each other before step 0"),
    TEXT(job_launch_t, restart, "auto",
         "how often within restart_window ranks start again after one of them or a link was lost; "
         "auto: 3, on one machine 0"),
    LH_OPTION_DURATION(job_launch_t, restart_window_ns, "restart_window", "1h", "1s..30d",
                       "time over which restarts are counted"),
    LH_OPTION_DURATION(job_launch_t, rejoin_ns, "rejoin", "5min", "1s..7d",
                       "how long ranks that started again wait for those of other machines"),
    CHOICE(job_launch_t, go_on_with, "none", "none|sites|ranks",
           "what becomes of a job whose ranks did not all come back within rejoin and have no spare: "
           "it ends, goes on with the sites that are whole, or with all hosts that are there; who was "
           "lost is taken in again at a checkpoint"),
    TEXT(job_launch_t, prefer, "",
         "the site that goes on where a cut leaves two halves of equally many ranks; both wait if "
         "neither this nor a witness decides"),
    TEXT(job_launch_t, witness, "",
         "a machine apart from all sites, on which a launcher runs too: of two halves of equally many "
         "ranks, none of which has the site that is preferred, the one that it sees goes on"),
    LH_OPTION_DURATION(job_launch_t, quorum_timeout_ns, "quorum_timeout", "0s", "0s..30d",
                       "how long, after rejoin, ranks wait for others that may not go on without them; "
                       "then they end with exit code 3; 0s: without end"),
    LH_OPTION_DURATION(job_launch_t, notice_ns, "notice", "0s", "0s..1d",
                       "how long before its end a machine is told by SIGTERM: all save, its ranks "
                       "leave, the others start again; 0s: SIGTERM ends the job"),
};

/* Nothing here changes what a step computes, but for the order of sums. */
static const lh_option_t parallel_rows[] = {
    WHOLE(job_parallel_t, tensor, "1", "1..", "ranks that share each matrix"),
    WHOLE(job_parallel_t, pipeline, "1", "1..", "ranks that share the blocks"),
    CHOICE(job_parallel_t, accumulation, "depth", "depth|breadth",
           "order of micro-batches: each through all blocks, or all through each block, which "
           "sends earlier"),
    PATH(job_parallel_t, schedule, "",
         "CSV of rows program,chunk,micro_batch,frame that says the order of a step in place of "
         "accumulation"),
    CHOICE(job_parallel_t, inside, "site", "site|node",
           "what [optimizer] cut = site is inside of: a site, or each of its machines; sums then "
           "go over sites, or over machines"),
};

/* The keys have no unit in their names, as values carry it; the fields have. */
static const lh_option_t comm_rows[] = {
    CHOICE(job_comm_t, bits, "canonical", "canonical|ordered",
           "sums in one order everywhere, or in any that is the same for the same layout"),
    CHOICE(job_comm_t, algorithm, "auto", "auto|direct|ring|halving",
           "of collectives; auto: by size and measured link"),
    CHOICE(job_comm_t, between_sites, "auto", "auto|mesh|exchange|chain|ring",
           "way of sums between sites; auto: by time over the measured links"),
    CHOICE(job_comm_t, border, "auto", "auto|f32|bf16|int8",
           "dtype in which sums of gradients cross from site to site; auto: [train] precision; int8: "
           "with error feedback"),
    LH_OPTION_BYTES(job_comm_t, chunk_bytes, "chunk", "0", "0..1GiB",
                    "piece of a collective that is under way at a time, 1KiB at least; 0: by link"),
    LH_OPTION_BYTES(job_comm_t, bucket_bytes, "bucket", "0", "0..16GiB",
                    "gradients that are exchanged together; 0: choose"),
    CHOICE(job_comm_t, device_memory, "auto", "auto|no",
           "gathered values lie in the device's own memory while they travel, where device and cards "
           "can, or in pinned memory"),
    LH_OPTION_DURATION(job_comm_t, timeout_ns, "timeout", "120s", "1s..1d",
                       "longest that a collective may stand still"),
    CHOICE(job_comm_t, probe, "start", "no|start|always",
           "measure links between sites: never, at a start that has no young record of them, or at "
           "each"),
    LH_OPTION_DURATION(job_comm_t, probe_age_ns, "probe_age", "7d", "0..365d",
                       "how long a record of links between sites counts"),
};

/* Across the border of a machine both ends prove who they are; across that of a site nobody reads.
 * The default of security depends on where the link goes. */
#define TRANSPORT_ROWS(security_)                                                \
    TEXT(job_transport_t, plugin, "", "transport plugin of this class of link"), \
        TEXT(job_transport_t, fallback, "",                                      \
             "transport plugin where the other cannot; refused if not set"),     \
        CHOICE(job_transport_t, security, security_, "plain|known|proven|private", \
               "open; both ends prove the job's key; every byte is sealed, too; and encrypted")
static const lh_option_t node_rows[] = {
    TRANSPORT_ROWS("plain"),
    TEXT(job_transport_t, collectives, "",
         "transport plugin that makes the collectives of a machine's ranks on their devices, such as "
         "nvlink; none if not set"),
};
static const lh_option_t site_rows[] = {TRANSPORT_ROWS("proven")};
static const lh_option_t wan_rows[] = {
    TRANSPORT_ROWS("private"),
    LH_OPTION_DURATION(
        job_transport_t, outage_ns, "outage", "3s", "1s..10min",
        "longest cut of a link between sites that is waited for; then its ranks are lost"),
    LH_OPTION_RATE(job_transport_t, rate, "rate", "0", NULL,
                   "what a site's link to the others carries each way, such as 100Gbps; its ranks "
                   "share it, and no pair's probe is faster; 0: unknown"),
};

/* What the table of [site.NAME] fills; job_sites.c takes it apart into hosts. */
typedef struct site_text {
    char *hosts, *spare, *addresses, *checkpoint_folder;
} site_text_t;
/* The next tables are of sections that are named, [site.NAME], [group.NAME], [adapter.NAME],
 * [eval.NAME] and [plugin.NAME]: job_sites.c parses the first, job_load.c the others. */
const lh_option_t job_site_rows[] = {
    TEXT(site_text_t, hosts, NULL,
         "HOST[:RANKS], comma-separated; a name as its machine calls itself, localhost, or what "
         "--host says"),
    TEXT(site_text_t, spare, "",
         "HOST[:RANKS], comma-separated: machines that wait, and take the ranks of a host that did "
         "not come back within [launch] rejoin"),
    TEXT(site_text_t, addresses, "",
         "comma-separated, of the hosts and then of the spares: where rank 0 listens once it is there, "
         "as the others reach it; their names if not set"),
    TEXT(site_text_t, checkpoint_folder, "",
         "where the checkpoints of this site lie: then each site has its own, in [checkpoint] folder "
         "where none is named"),
};

/* decay is read as text, as "not set" is no number. */
const lh_option_t job_group_rows[] = {
    TEXT(job_group_text_t, match, NULL,
         "globs over parameter names, comma-separated: blocks.*.norm"),
    LH_OPTION_F64(job_group_text_t, rate, "rate", "1", "0..", "factor on the learning rate"),
    TEXT(job_group_text_t, decay, "",
         "weight decay of these parameters; as [optimizer] if not set"),
    TEXT(job_group_text_t, rule, "",
         "update rule of these parameters, as plugin:rule; as [optimizer] if not set"),
    YES_NO(job_group_text_t, frozen, "no", "they are not trained"),
};

const lh_option_t job_adapter_rows[] = {
    CHOICE(job_adapter_t, kind, "lora", "lora|dora",
           "a change of low rank, or one with a magnitude for each row besides"),
    TEXT(job_adapter_t, match, NULL,
         "globs over names of the blocks' matrices, comma-separated: blocks.*.wq"),
    WHOLE(job_adapter_t, rank, "8", "1..4096", "columns of the change's two factors (LoRA's r)"),
    REAL(job_adapter_t, alpha, "16", "0..", "the change counts alpha / rank"),
};

/* clang-format off */
const lh_option_t job_eval_set_rows[] = {
    CHOICE(job_eval_set_t, kind, "perplexity", "perplexity|choice",
           "loss of text, or how often the likeliest of several continuations is the right one"),
    TEXT(job_eval_set_t, data, NULL, "train, valid, test or a JSONL file; of choices a file"),
    WHOLE(job_eval_set_t, tokens_per_document, "0", NULL,
          "tokens after which a document is cut; 0: never"),
    YES_NO(job_eval_set_t, bos, "no", "documents and prompts start with the begin token"),
    TEXT(job_eval_set_t, key, "text", "key of each line's object that holds the document"),
    TEXT(job_eval_set_t, prompt, "prompt", "of choices: key of the text that they continue"),
    TEXT(job_eval_set_t, choices, "choices", "of choices: key of their list"),
    TEXT(job_eval_set_t, answer, "answer", "of choices: key of the right one, by number from 0 or by text"),
    CHOICE(job_eval_set_t, delimiter, "space", "space|line|none", "what stands between a prompt and a choice"),
};
/* clang-format on */

const lh_option_t job_pin_rows[] = {
    TEXT(job_pin_t, sha256, "",
         "64 hexadecimal digits: another file under this name is refused; any file may be loaded "
         "if not set"),
};

typedef struct hook {
    char *call;
} hook_t;
/* Both hooks have one key; which variables the call may use is session/step_layout.c's. */
static const lh_option_t hook_rows[] = {
    TEXT(hook_t, call, NULL, "call of a function: acme:log_norms(step, loss)"),
};

/* SECTION takes the struct and the field of job_t from the section's name; TRANSPORT indexes an
 * array instead. */
#define ROWS(t) t, sizeof(t) / sizeof((t)[0])
#define SECTION(n, stages, plugin, help)                                                  \
    {                                                                                     \
#n, help, ROWS(n##_rows), sizeof(job_##n##_t), offsetof(job_t, n), stages, plugin \
    }
#define TRANSPORT(scope, n, help)                                                        \
    {                                                                                    \
        "transport." #n, help, ROWS(n##_rows), sizeof(job_transport_t),                  \
            offsetof(job_t, transports) + (scope) * sizeof(job_transport_t), 0, "plugin" \
    }

/* pipeline comes first, as the stages that it names decide what the others must have. In a name,
 * ".*" stands for any: those sections fill lists and are parsed one by one in job_load.c and
 * job_sites.c. */
static const job_section_t sections[] = {
    SECTION(pipeline, ALL, NULL, "the job: its name, its stages, its folder"),
    SECTION(prepare, PREPARE, NULL, "raw text to token files"),
    SECTION(chat, 0, NULL, "conversations to token files"),
    SECTION(data, 0, NULL, "which token files are trained on"),
    SECTION(model, IMPORT | TRAIN | EVAL | EXPORT | GENERATE, "plugin",
            "the architecture; the model plugin's own keys stand here too"),
    SECTION(train, TRAIN, NULL, "a step and how many"),
    SECTION(dpo, 0, NULL, "training on pairs of answers: [train] phase = dpo"),
    SECTION(optimizer, TRAIN, "plugin",
            "how weights change; the optimizer plugin's own keys stand here too"),
    {"group.*", "parameters with a rate, a decay or a rule of their own", ROWS(job_group_rows),
     sizeof(job_group_text_t), 0, 0, NULL},
    {"adapter.*",
     "matrices that stay as they are, with a low-rank change that is trained (LoRA, DoRA)",
     ROWS(job_adapter_rows), sizeof(job_adapter_t), 0, 0, NULL},
    {"plugin.*", "which file may be loaded as the plugin of that name", ROWS(job_pin_rows),
     sizeof(job_pin_t), 0, 0, NULL},
    {"spec", "an architecture in the INI, where [model] plugin = spec: what it is called", NULL, 0,
     0, 0, 0, NULL},
    {"spec.*", "its options, parameters, lines of ops and keys of config.json (docs/specs.md)",
     NULL, 0, 0, 0, 0, NULL},
    {"rule.*", "keys of the update rule of that name", NULL, 0, 0, 0, 0, NULL},
    {"parts.*", "keys of the plugin of that name that only brings functions, ops or rules", NULL, 0,
     0, 0, 0, NULL},
    SECTION(checkpoint, 0, NULL, "when weights and states are saved"),
    {"watch", "figures for whoever looks on while it trains", ROWS(watch_rows), sizeof(job_watch_t),
     JOB_APART, 0, NULL},
    SECTION(device, TRAIN | EVAL | GENERATE, "plugin",
            "what computes; the device plugin's own keys stand here too"),
    SECTION(import, IMPORT, NULL, "weights from a Hugging Face folder"),
    SECTION(eval, 0, NULL, "loss on held-out text"),
    {"eval.*", "one of several sets of held-out text or of choices, in place of that of [eval]",
     ROWS(job_eval_set_rows), sizeof(job_eval_set_t), 0, 0, NULL},
    SECTION(export, 0, NULL, "weights to a Hugging Face folder"),
    SECTION(generate, 0, NULL, "text from the model"),
    SECTION(launch, 0, NULL, "how many ranks start where, and how they meet"),
    SECTION(parallel, 0, NULL, "what ranks share; data parallel is what is left"),
    SECTION(comm, 0, NULL, "collectives"),
    {"site.*", "a data centre; ranks are numbered through all sites in order", ROWS(job_site_rows),
     sizeof(site_text_t), 0, 0, NULL},
    TRANSPORT(LH_LINK_NODE, node,
              "between ranks of a machine; the transport plugin's own keys stand here too"),
    TRANSPORT(LH_LINK_SITE, site, "between machines of a site; likewise"),
    TRANSPORT(LH_LINK_WAN, wan, "between sites; likewise"),
    {"hook.after_step",
     "a call after every step; it may use step, loss, learning_rate, norm and tokens",
     ROWS(hook_rows), sizeof(hook_t), offsetof(job_t, after_step), 0, NULL},
    {"hook.before_save", "a call before every checkpoint; it may use step and loss",
     ROWS(hook_rows), sizeof(hook_t), offsetof(job_t, before_save), 0, NULL},
    SECTION(limits, 0, NULL, "what a file from outside may ask this program to hold"),
};
/* clang-format on */

/* By STAGE_*: as the INI and the command line name them. */
const char *const job_stage_names[JOB_STAGES] = {
    [STAGE_PREPARE] = "prepare", [STAGE_IMPORT] = "import", [STAGE_TRAIN] = "train",
    [STAGE_EVAL] = "eval",       [STAGE_EXPORT] = "export", [STAGE_GENERATE] = "generate",
};

const char *const job_scope_names[JOB_SCOPES] = {"", "node", "site", "wan"};

const job_section_t *job_sections(uint32_t *count)
{
    *count = sizeof(sections) / sizeof(sections[0]);
    return sections;
}

const job_section_t *job_section(const char *name)
{
    for (uint32_t i = 0; i < sizeof(sections) / sizeof(sections[0]); i++)
        if (strcmp(sections[i].name, name) == 0) return &sections[i];
    return NULL;
}

/* config NULL: values are checked and kept nowhere. */
option_table_t job_section_table(const job_section_t *s, void *config)
{
    return (option_table_t){
        .rows = s->rows,
        .count = s->count,
        .owner = "the core",
        .config_size = s->config_size,
        .config = config,
    };
}

bool job_has_stage(const job_t *job, uint32_t stage)
{
    lh_assert(stage < JOB_STAGES);
    for (uint32_t i = 0; i < job->stage_count; i++)
        if (job->stages[i] == stage) return true;
    return false;
}

/* The place of the entry in force, not of those that it overrides. */
void job_where(const job_t *job, const char *section, const char *key, char out[JOB_WHERE_BYTES])
{
    const document_section_t *s = document_find(job->document, section);
    const document_entry_t *e = document_entry(s, key);
    if (e != NULL)
        document_where(e->file, e->line, out, JOB_WHERE_BYTES);
    else
        (void)snprintf(out, JOB_WHERE_BYTES, "%s", job->path);
}

char *job_path(const job_t *job, const char *name)
{
    return path_join(job->pipeline.folder, name);
}

uint32_t job_ranks(const job_t *job)
{
    return job->site_count > 0 ? job->site_ranks : (uint32_t)job->launch.ranks_per_node;
}

/* A walk over all hosts: it is asked for a few ranks at a start. */
void job_rank_place(const job_t *job, uint32_t rank, const job_site_t **site,
                    const job_host_t **host)
{
    *site = NULL;
    *host = NULL;
    for (uint32_t i = 0; i < job->site_count; i++)
        for (uint32_t k = 0; k < job->sites[i].host_count; k++) {
            const job_host_t *h = &job->sites[i].hosts[k];
            if (rank < h->first_rank || rank - h->first_rank >= h->ranks) continue;
            *site = &job->sites[i];
            *host = h;
        }
}

/* tables is the caller's array, whose second entry is set; the first becomes the core's table, or a
 * copy of the second where the core reads nothing of this section. */
options_how_t job_plugin_how(const job_t *job, const char *section, option_table_t tables[2],
                             const option_given_t *given, uint32_t given_count)
{
    const job_section_t *core = job_section(section);
    const bool shared = core != NULL && core->rows != NULL;
    if (shared)
        tables[0] = job_section_table(core, NULL);
    else
        tables[0] = tables[1];
    return (options_how_t){.document = job->document,
                           .section = section,
                           .tables = tables,
                           .table_count = shared ? 2 : 1,
                           .given = given,
                           .given_count = given_count,
                           .folder = job->base};
}

/* others: tables whose keys may stand in the section too. The config is allocated here and
 * zeroed, so a row that nobody sets is 0 or NULL. */
static lh_status_t parse_config(const job_t *job, const char *section, const option_table_t *table,
                                const option_given_t *given, uint32_t given_count,
                                const option_table_t *others, uint32_t other_count, void **out)
{
    option_table_t tables[2] = {{0}, *table};
    void *config = mem_new(table->config_size);
    if (config == NULL) return LH_NO_MEMORY;

    tables[1].config = config;
    options_how_t how = job_plugin_how(job, section, tables, given, given_count);
    how.others = others;
    how.other_count = other_count;
    const lh_status_t status = options_parse(&how);
    if (status != LH_OK) {
        mem_free(config);
        return status;
    }
    *out = config;
    return LH_OK;
}

lh_status_t job_parse_plugin(const job_t *job, const char *section, const option_table_t *table,
                             const option_given_t *given, uint32_t given_count, void **out)
{
    return parse_config(job, section, table, given, given_count, NULL, 0, out);
}

lh_status_t job_parse_transport(const job_t *job, uint32_t scope, const option_table_t *table,
                                const option_table_t *others, uint32_t other_count, void **out)
{
    lh_assert(scope > 0 && scope < JOB_SCOPES);
    char section[32];
    (void)snprintf(section, sizeof(section), "transport.%s", job_scope_names[scope]);
    return parse_config(job, section, table, NULL, 0, others, other_count, out);
}

void job_free_config(const option_table_t *table, void *config)
{
    options_free(table->rows, table->count, config);
    mem_free(config);
}

lh_status_t job_watch_parse(const job_t *job, job_watch_t *out)
{
    const job_section_t *s = job_section("watch");
    lh_assert(s != NULL && s->offset == JOB_APART && s->config_size == sizeof(*out));
    if (out != NULL) *out = (job_watch_t){0};
    const option_table_t table = job_section_table(s, out);
    const options_how_t how = {.document = job->document,
                               .section = s->name,
                               .tables = &table,
                               .table_count = 1,
                               .folder = job->base};
    return options_parse(&how);
}

void job_watch_free(job_watch_t *watch)
{
    const job_section_t *s = job_section("watch");
    options_free(s->rows, s->count, watch);
}

lh_status_t job_take_site(job_t *job, const job_site_t *site)
{
    if (!job->checkpoint.apart || site == NULL || site->checkpoint_folder == NULL ||
        *site->checkpoint_folder == '\0')
        return LH_OK;
    char *folder = mem_text(site->checkpoint_folder);
    if (folder == NULL) return LH_NO_MEMORY;
    mem_free(job->checkpoint.folder);
    job->checkpoint.folder = folder;
    return LH_OK;
}
