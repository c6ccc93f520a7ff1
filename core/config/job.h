/* config/job.h - every section of a pipeline's INI that the core itself reads, as typed structs.
 *
 * job_load() reads the file (with include and --set), parses each section by its option table,
 * checks what crosses sections, and refuses what it does not know. It touches no device, no
 * tokenizer and no plugin: keys of [model], [optimizer], [device], [rule.NAME] that are not listed
 * here belong to the plugin named there, and whoever loads that plugin parses them with
 * job_parse_plugin(). Strings are owned by the job and live until job_free. Paths are absolute
 * already: against the folder of the file in which they stand, of the command line against that of
 * the INI; those marked (in folder) against [pipeline] folder. NULL: not set.
 *
 * One struct for all and not a lookup by name: what a stage reads of a job is checked by the
 * compiler, and a key that is misspelt in the source does not build. The structs below are in the
 * order of the sections; their fields are those of the tables in job.c, which fill them by offset.
 */
#ifndef CONFIG_JOB_H
#define CONFIG_JOB_H

#include <config/options.h>

/* Stages in the order in which a whole pipeline runs them. An INI names those it wants, in the
 * order it wants; job_t.stages keeps that order. */
enum { JOB_STAGES = 6 };
enum { STAGE_PREPARE, STAGE_IMPORT, STAGE_TRAIN, STAGE_EVAL, STAGE_EXPORT, STAGE_GENERATE };

/* [pipeline]: what the whole is called, and where all of it is written. */
typedef struct job_pipeline {
    char *name;
    /* A blank or a comma between the names. */
    char *stages; /* as typed; parsed into job_t.stages */
    char *folder; /* out/NAME by default                */
} job_pipeline_t;

/* What stands around each document in the token files: the ids are the tokenizer's own. */
enum { PREPEND_NONE, PREPEND_BOS };
enum { APPEND_NONE, APPEND_EOD, APPEND_EOS };

/* [prepare]: how text becomes token files. */
typedef struct job_prepare {
    char *input; /* comma-separated paths and globs */
    char *key;   /* "text"                                                    */
    /* File: vocab.json | tokenizer.json | tokenizer.model | tokenizer.bin | ranks; or its folder. */
    char *tokenizer;
    uint32_t prepend, append; /* PREPEND_*, APPEND_*                              */
    /* What a line that is no JSON, or lacks the key, does. max:N is how many are skipped before it
     * fails. */
    char *on_error; /* "fail", "skip", "max:N"                                   */
    char *output;   /* (in folder) without .bin/.idx; "corpus"                   */
    /* Threads of this process. */
    uint64_t workers; /* 0: as many as processors                                  */
    char *accept; /* call of a data filter, or NULL: u64(u64 tokens, ...), 0 drops the document */
} job_prepare_t;

/* What stands around the messages of a conversation (data/chat.h). */
enum {
    CHAT_NONE,
    CHAT_CHATML,
    CHAT_LLAMA2,
    CHAT_LLAMA3,
    CHAT_MISTRAL,
    CHAT_GEMMA,
    CHAT_PHI3,
    CHAT_ZEPHYR,
    CHAT_PLAIN,
    CHAT_QWEN2,
    CHAT_QWEN25
};

/* The names of CHAT_*, in that order. */
#define JOB_CHAT_FORMATS "none|chatml|llama2|llama3|mistral|gemma|phi3|zephyr|plain|qwen2|qwen2.5"

/* [chat]: how a line of JSONL with messages, or with a prompt and its answer, becomes one text. */
typedef struct job_chat {
    uint32_t format; /* CHAT_*; none: lines are documents */
    bool pairs;      /* lines have two answers, chosen and rejected */
    /* Keys of each line's object. */
    char *messages, *prompt, *answer, *chosen, *rejected;
    /* In place of the format's parts; NULL: as there. */
    char *begin, *system, *user, *reply, *tail, *joined;
} job_chat_t;

/* joined: a sequence is a piece of one long text, as Megatron trains. apart: attention and
 * positions begin anew at each document in it. */
enum { DOCUMENTS_JOINED, DOCUMENTS_APART };
/* What becomes of a conversation that is longer than a sequence. */
enum { TOO_LONG_FAIL, TOO_LONG_SKIP, TOO_LONG_CUT };

#define JOB_SPLIT_MOST 1e15 /* of a part: their sum stays exact enough */

/* [dpo]: what [train] phase = dpo minimises. */
typedef struct job_dpo {
    double beta;     /* factor on the log ratios */
    char *reference; /* folder of checkpoints of the frozen model; NULL: what the run starts from */
} job_dpo_t;

/* [data]: which token files are trained on, and in which order. */
typedef struct job_data {
    char *train;        /* "corpus" or "corpus a:0.7, b:0.3": (in folder), without .bin/.idx */
    char *valid, *test; /* data sets of their own instead of the split; NULL. These three are as
                           typed: job_path() each name */
    /* Parts of `train` for training, evaluation and test; used where valid and test are not set. */
    char *split;        /* "969,30,1"                                                    */
    uint32_t documents; /* DOCUMENTS_*                                             */
    /* With the number of samples that are asked for, it decides the order alone: any rank computes
     * it for itself. */
    uint64_t seed; /* of the sample order; 1234, Megatron's default                 */
    char *skip;    /* batches that are left out; NULL. As typed: batch_skips_parse  */
    /* Of conversations, which are never cut in two: */
    bool packing;      /* several in a sequence, as many as fit                        */
    uint32_t too_long; /* TOO_LONG_*                                                 */
} job_data_t;

/* [model]: what of it the core reads; the rest is the plugin's. */
typedef struct job_model {
    char *plugin;
    /* How many rows the embedding has, before rounding. */
    char *vocab;             /* "from_tokenizer", "from_import" or a number        */
    uint64_t vocab_multiple; /* 64: rows are rounded up to this                    */
    char *ops;               /* comma-separated plugins loaded for their ops       */
    /* Of weights that no checkpoint and no import gives. */
    double init_std; /* 0.02                                              */
} job_model_t;

/* dtype of forward and backward; masters and states of the optimizer are FP32 with either. */
enum { PRECISION_BF16, PRECISION_F32 };
/* pretrain: every token counts. sft, supervised fine-tuning: those of answers do. dpo, direct
 * preference optimization: of two answers one is to become likelier than the other. */
enum { PHASE_PRETRAIN, PHASE_SFT, PHASE_DPO };
enum { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL };
/* dtype of the logits that a loss is made of: F32, or that of compute. */
enum { LOGITS_F32, LOGITS_COMPUTE };

/* [train]: a step and how many of them. Sizes are global; how ranks share a batch is
 * data/batches.h's. */
typedef struct job_train {
    /* batch is over all ranks. A rank takes its share in pieces of at most micro_batch sequences; 0
     * becomes the whole batch (job_check). */
    uint64_t sequence, batch, micro_batch; /* tokens, sequences a step, sequences at once */
    uint32_t phase;                        /* PHASE_* */
    uint64_t steps;
    uint64_t seed;
    uint32_t precision; /* PRECISION_* */
    uint32_t recompute; /* RECOMPUTE_* */
    /* Held-out loss during training; the start weights are evaluated, too. */
    uint64_t evaluate_every;   /* 0: never                                          */
    uint64_t evaluate_batches; /* micro-batches of the valid split; 0: all that it fills */
    uint32_t logits;           /* LOGITS_*                                         */
    /* Bounds on what the programs hold at a time. A resume must have the same head_chunk, as the
     * bits depend on it. */
    uint64_t head_chunk;    /* tokens whose logits exist at a time; 0: choose     */
    uint64_t max_documents; /* per micro-batch when documents = apart; 0: choose  */
    /* A step whose loss or gradients are not finite changes nothing; so many in a row end the run
     * with exit code 4. */
    uint64_t not_finite_limit; /* steps in a row that may be refused before exit 4   */
    uint64_t log_every;
    /* The promise that a resumed run gives the bits of one that was never stopped. */
    bool same_bits; /* yes: a resume on another fingerprint or kernel variant is refused */
    /* yes: only kernels that give the same bits every time (LH_KERNEL_ORDERED). */
    bool deterministic;
} job_train_t;

/* [optimizer]: which plugin, which rule, and the rate as text, which session/step_layout.h binds.
 */
typedef struct job_optimizer {
    char *plugin; /* name of an optimizer plugin                          */
    char *rule;   /* "rules:adamw"                                         */
    /* Decay and clip act inside the update: decay is the rule's to apply, clip scales all gradients
     * by one factor. */
    double decay; /* of parameters without the no-decay flag               */
    double clip;  /* global gradient norm; 0: none                         */
    /* step_calls_new binds it, step_calls_rate asks it for each step. */
    char *learning_rate; /* a call, or a number                                   */
} job_optimizer_t;

enum { ADAPTER_LORA, ADAPTER_DORA };
/* [adapter.NAME]: matrices that stay as they are and get a low-rank change that is trained. */
typedef struct job_adapter {
    char *name;    /* NULL: the job has none */
    uint32_t kind; /* ADAPTER_* */
    char *match;   /* globs over logical names */
    uint64_t rank;
    double alpha; /* the change counts alpha / rank */
} job_adapter_t;

typedef struct job_group { /* [group.NAME]: parameters that match get a rate, decay or rule
                              of their own */
    char *name;
    char *match;  /* globs over logical names, comma-separated: "blocks.*.norm" */
    double rate;  /* factor on the learning rate; 1                        */
    double decay; /* NAN: as [optimizer]                                   */
    char *rule;   /* NULL: as [optimizer]                                  */
    bool frozen;
} job_group_t;

/* decay is parsed by job_load.c, as NAN is not a value that can be typed. */
typedef struct job_group_text { /* what the table of [group.NAME] fills */
    char *match, *decay, *rule;
    double rate;
    bool frozen;
} job_group_text_t;

/* A plugin is code that runs with all rights of the program: pinning it makes an exchanged file a
 * refusal. */
typedef struct job_pin { /* [plugin.NAME]: the one file that may be loaded under this name */
    char *name;
    char *sha256; /* 64 lower-case hexadecimal digits, or NULL */
} job_pin_t;

/* [checkpoint]: when weights are saved, and how long training may wait for it. */
typedef struct job_checkpoint {
    uint64_t every; /* steps; 0: only at the end */
    /* How many of the newest stay when one is committed; besides them those whose step is a multiple
     * of keep_every, and the one with the least held-out loss. */
    uint64_t keep, keep_every; /* keep_every 0: none */
    bool keep_best;
    uint64_t memory_every; /* steps between snapshots that stay in memory; 0: none */
    char *folder;          /* (in folder) "checkpoints"; with `apart` that of this process's site */
    bool apart;            /* each site has a folder, and checkpoints, of its own */
    /* A save that is late is given up, and training goes on; one that is only slow makes the next
     * wait, for at most patience in all. */
    uint64_t deadline_ns; /* then a save is given up   */
    uint64_t patience_ns; /* that training stands still for a save before the next one */
} job_checkpoint_t;

/* [device]: the core's own keys; the plugin's stand in the same section. */
typedef struct job_device {
    char *plugin;        /* name of a device plugin */
    char *plugin_folder; /* overrides where plugins are looked for; NULL: beside the binary */
    bool tune;           /* kernels may time what they choose from */
} job_device_t;

typedef struct job_import {
    char *from;    /* Hugging Face folder */
    char *adapter; /* PEFT folder whose values [adapter.NAME] starts with; NULL: new ones */
} job_import_t;

/* [eval]: what `longhaul eval` scores. Evaluations during training are [train]'s. */
typedef struct job_eval {
    char *data; /* "train", "valid", "test" or a JSONL file          */
    /* 0 keeps documents whole; one that is longer than the model takes is then an error. */
    uint64_t tokens_per_document; /* a longer one is cut; 0: no limit */
    bool bos;                     /* documents start with BOS                           */
    char *key;
    char *tokenizer; /* NULL: the one of [prepare] or of the imported folder */
} job_eval_t;

/* perplexity: of a split, or of documents. choice: which of several continuations of a prompt the
 * model finds likeliest. */
enum { EVAL_PERPLEXITY, EVAL_CHOICE };
/* What stands between a prompt and each of its choices. */
enum { DELIMITER_SPACE, DELIMITER_LINE, DELIMITER_NONE };

/* [eval.NAME]: one of several sets that `longhaul eval` scores. */
typedef struct job_eval_set {
    char *name;    /* NULL: that of [eval], which is the only one then */
    uint32_t kind; /* EVAL_*                                        */
    char *data;    /* as [eval] data; of choices a JSONL file       */
    uint64_t tokens_per_document;
    bool bos; /* documents, and prompts, start with BOS */
    char *key;
    char *prompt, *choices, *answer; /* keys of a line of choices */
    uint32_t delimiter;              /* DELIMITER_*               */
} job_eval_set_t;

/* as_imported: the dtype that the import had; what it falls back to without an import is hf's to
 * say. */
enum { EXPORT_AS_IMPORTED, EXPORT_F32, EXPORT_BF16, EXPORT_F16 };
/* Added to the weights, or alone in PEFT's format. */
enum { EXPORT_ADAPTER_MERGED, EXPORT_ADAPTER_SEPARATE };

/* [export]: where a Hugging Face folder is written, and in which dtype. */
typedef struct job_export {
    char *folder;     /* (in folder) "hf" */
    uint32_t dtype;   /* EXPORT_*         */
    uint32_t adapter; /* EXPORT_ADAPTER_*: where the job has one */
    uint64_t shard_bytes;
} job_export_t;

/* [generate]: defaults of `longhaul generate`, whose flags go before them. */
typedef struct job_generate {
    char *prompt;
    char *ids;      /* comma-separated token ids instead of a prompt */
    char *prompts;  /* JSONL file of prompts or messages; NULL: one prompt */
    uint64_t batch; /* of its lines that are continued at once            */
    bool chat;      /* by [chat] format: a prompt is a user's message     */
    uint64_t tokens;
    bool greedy;
    double temperature, top_p;
    uint64_t top_k; /* 0: all */
    uint64_t seed;
    bool bos; /* prompt starts with BOS */
} job_generate_t;

/* [launch]: how ranks are started and meet. */
typedef struct job_launch {
    /* Where there are no sites this is the number of all ranks, which are on one machine. */
    uint64_t ranks_per_node; /* of a host whose number [site.NAME] hosts does not say */
    bool bind;               /* ranks to shares of a machine's processors */
    /* File of mode 0600, made at the first start, with the job's key, which proves to a rank that
     * another belongs to the same job. NULL: a key that lives as long as the job, which only ranks
     * of one machine can share. */
    char *secret;
    char *address; /* where rank 0 listens on the first host; NULL: its machine, or the launcher's
                      word */
    uint64_t port; /* 0: any that is free                                         */
    uint64_t join_timeout_ns;
    char *restart; /* as it is typed; restarts says what it comes to */
    uint64_t restart_window_ns, rejoin_ns;
    uint64_t notice_ns; /* SIGTERM takes one machine away within it; 0: it ends the job */
    /* With whom ranks go on where others did not come back within rejoin, and had no spare. */
    uint32_t go_on_with; /* GO_ON_* */
    char *prefer;        /* site that goes on where a cut leaves two halves of equal size; NULL */
    char *witness;       /* a machine without ranks, whose vote decides where prefer can't; NULL */
    /* Those that may not go on by themselves wait so long for others; 0: without end. */
    uint64_t quorum_timeout_ns;
    uint64_t restarts; /* that a launcher makes within the window; 0: none */
} job_launch_t;

/* Without whom a job goes on: nobody; whole sites, so that those that are left are complete; or any
 * hosts. */
enum { GO_ON_NONE, GO_ON_SITES, GO_ON_RANKS };

enum { JOB_RESTARTS = 1000 }; /* the most */

/* depth: a micro-batch goes there and back before the next. breadth: all go through a part of the
 * model before the next part. */
enum { ACCUMULATION_DEPTH, ACCUMULATION_BREADTH };
/* What an optimizer's cut inside a site is inside of. */
enum { INSIDE_SITE, INSIDE_NODE };

/* [parallel]: how ranks share a model. tensor and pipeline are read and refused, but for 1, so that
 * an INI which names them fails with a sentence. */
typedef struct job_parallel {
    uint64_t tensor, pipeline; /* 1: what is left is data parallel */
    uint32_t accumulation;     /* ACCUMULATION_*                   */
    char *schedule;            /* CSV of rows in place of it; NULL: none */
    uint32_t inside;           /* INSIDE_*                         */
} job_parallel_t;

/* canonical: sums in an order that depends on ranks and sites alone. */
enum { BITS_CANONICAL, BITS_ORDERED };
/* auto: as the optimizer's table says, else as the job computes. int8: in blocks, with error feedback
 * (comm/quantize.h). */
enum { BORDER_AUTO, BORDER_F32, BORDER_BF16, BORDER_INT8 };
/* When links between sites are measured before training: never, where no young record of them is
 * there, or at every start. */
enum { PROBE_NO, PROBE_START, PROBE_ALWAYS };

/* Whether cards may read and write a device's own memory. */
enum { DEVICE_MEMORY_AUTO, DEVICE_MEMORY_NO };

/* [comm]: collectives. */
typedef struct job_comm {
    uint32_t bits;          /* BITS_*                                             */
    uint32_t algorithm;     /* COLL_* of comm/coll.h: auto, direct, ring, halving */
    uint32_t between_sites; /* BETWEEN_* of comm/coll.h: auto, mesh, exchange, chain, ring */
    uint32_t border;        /* BORDER_*: dtype of sums of gradients between sites */
    uint64_t chunk_bytes;   /* 0: by link                                         */
    uint64_t bucket_bytes;  /* gradients that are exchanged together; 0: choose   */
    uint32_t device_memory; /* DEVICE_MEMORY_*                                    */
    /* A transfer that makes no progress for so long ends the job on all ranks. */
    uint64_t timeout_ns;   /* longest that a collective may stand still          */
    uint32_t probe;        /* PROBE_*: whether links between sites are measured  */
    uint64_t probe_age_ns; /* how long what was measured stays true              */
} job_comm_t;

/* ranks [first_rank, first_rank + ranks) live there. */
typedef struct job_host { /* one of [site.NAME] hosts */
    char *name;
    uint32_t ranks, first_rank;
    char *address; /* where rank 0 listens once it is there; NULL: its name */
} job_host_t;

/* A site's ranks follow those of the site before; inside, hosts follow each other in the same way.
 */
typedef struct job_site { /* [site.NAME], in order; ranks are numbered through all of them */
    char *name;
    char *checkpoint_folder; /* absolute, or "": [checkpoint] folder */
    job_host_t *hosts;
    uint32_t host_count;
    job_host_t *spares; /* ranks: the most that it can take; in place of a host that is lost */
    uint32_t spare_count;
} job_site_t;

/* What the core reads of a transport's section; buffers, rails and the like are the plugin's. */
typedef struct job_transport { /* [transport.node|site|wan] */
    char *plugin;              /* NULL: not said                           */
    /* Tried where `plugin` says that it can't work on this machine (LH_UNSUPPORTED), not where it
     * fails. */
    char *fallback;    /* plugin that is used where it cannot; NULL: none */
    uint32_t security; /* LH_SECURITY_*                            */
    char *collectives; /* of node: plugin of the whole-group collectives; NULL: none */
    /* The last two are read for links between sites alone. */
    uint64_t outage_ns; /* of wan: longest cut that is waited out   */
    uint64_t rate;      /* of wan: bytes/s of a site's link, each way; 0: unknown */
} job_transport_t;

/* Bytes of names with their NUL, the most ranks, classes of links, of which 0 is unused, and spares of
 * a site. */
enum { JOB_SITE_NAME = 32, JOB_HOST_NAME = 64, JOB_RANKS = 65536, JOB_SCOPES = 4, JOB_SPARES = 26 };

/* A file that asks for more is refused with the key that would allow it. */
typedef struct job_limits { /* [limits]: what a parser may be asked to hold */
    uint64_t line_bytes;    /* of JSONL            */
    uint64_t window_bytes;  /* of a zstd file      */
    uint64_t header_bytes;  /* of safetensors      */
    uint64_t tensors, shards;
    uint64_t vocabulary, token_bytes, merges;
    uint64_t tokenizer_bytes; /* of each of its files */
    uint64_t plugin_bytes;    /* of a plugin's file  */
} job_limits_t;

/* Made by job_load, read by everybody, changed by nobody after that but for a few commands that put
 * a flag over a value before anything was opened (bench). Owned as a whole: job_free. */
typedef struct job {
    char *path;           /* of the INI, as given */
    char *base;           /* the INI's folder, absolute */
    document_t *document; /* every line, for the sections that plugins read */
    uint32_t stages[JOB_STAGES];
    uint32_t stage_count;

    job_pipeline_t pipeline;
    job_prepare_t prepare;
    job_chat_t chat;
    job_data_t data;
    job_model_t model;
    job_train_t train;
    job_dpo_t dpo;
    job_optimizer_t optimizer;
    job_group_t *groups;
    uint32_t group_count;
    job_adapter_t adapter;
    job_pin_t *pins;
    uint32_t pin_count;
    job_checkpoint_t checkpoint;
    job_device_t device;
    job_import_t import;
    job_eval_t eval;
    job_eval_set_t *eval_sets; /* [eval.NAME] in order, or the one of [eval] */
    uint32_t eval_set_count;
    job_export_t export;
    job_generate_t generate;
    job_limits_t limits;
    job_launch_t launch;
    job_parallel_t parallel;
    job_comm_t comm;
    job_site_t *sites;
    uint32_t site_count;   /* 0: all ranks are on one machine */
    uint32_t site_ranks;   /* of all sites                    */
    job_site_t *all_sites; /* as the INI has them; `sites`, unless members_narrow */
    uint32_t all_site_count;
    job_transport_t transports[JOB_SCOPES]; /* by LH_LINK_*; [0] is unused     */
    char *after_step;                       /* [hook.after_step] call, or NULL  */
    char *before_save;                      /* [hook.before_save] call, or NULL */
} job_t;

enum { JOB_WHERE_BYTES = 600 };

/* File and line of a key, or the INI's path where it is not set. For sentences: the reader then
 * knows where to go. */
void job_where(const job_t *job, const char *section, const char *key, char out[JOB_WHERE_BYTES]);

/* The sentence begins with where the key stands. Returns from the caller; for functions that give
 * an lh_status_t. */
#define JOB_REFUSE(job, section, key, fmt, ...)                                           \
    do {                                                                                  \
        char where_[JOB_WHERE_BYTES];                                                     \
        job_where(job, section, key, where_);                                             \
        return fail(LH_INVALID, "%s: %s = " fmt, where_, key __VA_OPT__(, ) __VA_ARGS__); \
    } while (0)

/* "folder/name" of the pipeline (an absolute name stands alone); the caller frees with mem_free.
 * NULL after fail(LH_NO_MEMORY). */
char *job_path(const job_t *job, const char *name);
/* The ranks that the INI itself asks for: those of its sites, or of this one machine. */
uint32_t job_ranks(const job_t *job);
/* Where a rank of [site.*] lives. Both NULL where the job has no sites. */
void job_rank_place(const job_t *job, uint32_t rank, const job_site_t **site,
                    const job_host_t **host);
/* From here on [checkpoint] folder is that of a site, where sites have their own. */
lh_status_t job_take_site(job_t *job, const job_site_t *site) LH_MUST_CHECK;
/* "node", "site", "wan" by LH_LINK_*: what follows [transport. */
extern const char *const job_scope_names[JOB_SCOPES];
bool job_has_stage(const job_t *job, uint32_t stage); /* STAGE_* */
extern const char *const job_stage_names[JOB_STAGES];

/* The sections that the core reads, for parsing, check and help. A row of the table of all
 * sections, which parsing, `check` and `help` walk alike. */
typedef struct job_section {
    const char *name; /* "train"; "group.*" stands for all [group.NAME]                     */
    const char *help;
    const lh_option_t *rows;
    uint32_t count;
    uint32_t config_size;
    uint32_t offset;        /* of the struct in job_t; not for "group.*"                      */
    uint32_t stages;        /* bit per stage that needs the section's required keys           */
    const char *plugin_key; /* key that names a plugin whose options stand here too; or NULL */
} job_section_t;
/* The place of a section that is not in job_t. */
#define JOB_APART UINT32_MAX
extern const lh_option_t job_group_rows[], job_adapter_rows[], job_pin_rows[], job_site_rows[],
    job_eval_set_rows[];
/* The order is that of `help` and `check`. */
const job_section_t *job_sections(uint32_t *count);
/* A name such as "group.main" is not found here, but "group.*" is. */
const job_section_t *job_section(const char *name); /* of its exact name, or NULL */
/* The rows of a section, which fill config: the struct in job_t or one of its kind; NULL: they are
 * only checked. */
option_table_t job_section_table(const job_section_t *s, void *config);

/* Parses what a plugin (or rule) reads of a section, beside the core's keys there, into a new
 * config struct of config_size bytes. given: values that the core knows better (vocab) or that an
 * import brings. Free with job_free_config. Keys that are neither the core's nor the plugin's are
 * refused here, which job_load had to leave open. */
lh_status_t job_parse_plugin(const job_t *job, const char *section, const option_table_t *table,
                             const option_given_t *given, uint32_t given_count,
                             void **out) LH_MUST_CHECK;
/* Likewise for [transport.*], where the plugin, its fallback and that of the collectives each find their
 * own keys; others [other_count]: the tables of the others. */
lh_status_t job_parse_transport(const job_t *job, uint32_t scope, const option_table_t *table,
                                const option_table_t *others, uint32_t other_count,
                                void **out) LH_MUST_CHECK;
/* What job_parse_plugin reads, as a question for options_explain: tables[1] is the plugin's. */
options_how_t job_plugin_how(const job_t *job, const char *section, option_table_t tables[2],
                             const option_given_t *given, uint32_t given_count);
void job_free_config(const option_table_t *table, void *config);

/* [watch]: who looks on while a job trains, beside the files that are always written. The one section
 * that is no part of job_t: no stage asks it anything, and no run is another for it. job_load checks
 * it with all others; who needs it parses it once more. */
typedef struct job_watch {
    char *metrics;  /* "HOST:PORT" or ":PORT" where figures are served over HTTP; NULL: nowhere */
    char *textfile; /* a file of the same figures, for a node exporter; NULL: none */
    uint64_t report_ns; /* between two renewals of report.html; 0: at the end alone */
    uint32_t log;       /* LH_LOG_*: log_threshold */
} job_watch_t;

/* out NULL: the section is only checked. Its strings are the caller's: job_watch_free. */
lh_status_t job_watch_parse(const job_t *job, job_watch_t *out) LH_MUST_CHECK;
void job_watch_free(job_watch_t *watch);

#endif
