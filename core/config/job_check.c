/* job_check.c - values that are wrong by themselves or beside others. */
#include <config/job_check.h>

#include <ctype.h>
#include <stdio.h>

#include <longhaul/link.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/text.h>
#include <config/members.h>
#include <config/quantity.h>

enum {
    LAUNCH_ADDRESS = 256,
    SMALLEST_CHUNK = 1024, /* bytes; smaller ones are nearly all overhead */
};

/* What the INI may already say and this version can't do yet is refused by name. */
static lh_status_t check_parallel(const job_t *job)
{
    if (job->comm.chunk_bytes != 0 && job->comm.chunk_bytes < SMALLEST_CHUNK)
        JOB_REFUSE(job, "comm", "chunk", "%llu: expected 0, which chooses, or %d on",
                   (unsigned long long)job->comm.chunk_bytes, SMALLEST_CHUNK);
    if (job->parallel.tensor != 1)
        JOB_REFUSE(job, "parallel", "tensor",
                   "%llu: tensor parallelism is not built yet; expected 1",
                   (unsigned long long)job->parallel.tensor);
    if (job->parallel.pipeline != 1)
        JOB_REFUSE(job, "parallel", "pipeline",
                   "%llu: pipeline parallelism is not built yet; expected 1",
                   (unsigned long long)job->parallel.pipeline);
    return LH_OK;
}

/* A library's sums have an order of their own, so `bits` unset means ordered beside it, and the order
 * that it can't have is refused where it is asked for. */
static lh_status_t check_collectives(job_t *job)
{
    const char *plugin = job->transports[LH_LINK_NODE].collectives;
    if (plugin == NULL) return LH_OK;
    const document_section_t *comm = document_find(job->document, "comm");
    if (document_entry(comm, "bits") != NULL && job->comm.bits == BITS_CANONICAL)
        JOB_REFUSE(job, "comm", "bits",
                   "canonical: [transport.node] collectives = %s adds in an order of its own; "
                   "expected [comm] bits = ordered, or no collectives there",
                   plugin);
    job->comm.bits = BITS_ORDERED;
    return LH_OK;
}

/* A transfer that stands still for longer ends the job, whatever its link would still wait for. */
static lh_status_t check_outage(const job_t *job)
{
    const uint64_t outage = job->transports[LH_LINK_WAN].outage_ns;
    if (outage > job->comm.timeout_ns)
        JOB_REFUSE(job, "transport.wan", "outage",
                   "%g s: longer than [comm] timeout = %g s, after which a transfer that stands "
                   "still ends the job; expected at most as long",
                   (double)outage * 1e-9, (double)job->comm.timeout_ns * 1e-9);
    return LH_OK;
}

/* Conversations lie apart in a sequence. A job that prepares its data prepares what it trains on. */
static lh_status_t check_phase(job_t *job)
{
    static const char *const names[] = {
        [PHASE_PRETRAIN] = "pretrain", [PHASE_SFT] = "sft", [PHASE_DPO] = "dpo"};
    const uint32_t phase = job->train.phase;
    const bool chat = job->chat.format != CHAT_NONE, pairs = job->chat.pairs;
    const bool both = job_has_stage(job, STAGE_PREPARE) && job_has_stage(job, STAGE_TRAIN);
    if (pairs && !chat)
        JOB_REFUSE(job, "chat", "pairs", "yes: [chat] format is none; expected one such as chatml");
    if (both && phase != PHASE_PRETRAIN && !chat)
        JOB_REFUSE(job, "train", "phase",
                   "%s: answers are trained on, and [chat] format is none; "
                   "expected one such as chatml",
                   names[phase]);
    if (both && chat && pairs != (phase == PHASE_DPO))
        JOB_REFUSE(job, "train", "phase", "%s: [chat] pairs = %s prepares %s; expected %s",
                   names[phase], pairs ? "yes" : "no", pairs ? "pairs of answers" : "conversations",
                   pairs ? "dpo" : "sft");
    if (both && chat && phase == PHASE_PRETRAIN)
        JOB_REFUSE(job, "train", "phase",
                   "pretrain: [chat] format prepares conversations; expected sft");
    /* `check` writes out every key: one that has its default is no demand. */
    const job_section_t *own = job_section("dpo");
    for (uint32_t i = 0; phase != PHASE_DPO && job_has_stage(job, STAGE_TRAIN) && i < own->count;
         i++)
        if (!option_is_default(&own->rows[i], &job->dpo))
            JOB_REFUSE(job, "dpo", own->rows[i].key, "%s: [train] phase is %s; expected dpo",
                       document_entry(document_find(job->document, "dpo"), own->rows[i].key)->value,
                       names[phase]);
    if (phase == PHASE_PRETRAIN) return LH_OK;
    if (phase == PHASE_DPO && !(job->dpo.beta > 0))
        JOB_REFUSE(job, "dpo", "beta", "%g: no pair would count; expected a number above 0",
                   job->dpo.beta);
    if (phase == PHASE_DPO && job->dpo.reference != NULL && job->adapter.name != NULL)
        JOB_REFUSE(job, "dpo", "reference",
                   "%s: a model with [adapter.%s] is compared with itself without it; expected "
                   "none beside it",
                   document_entry(document_find(job->document, "dpo"), "reference")->value,
                   job->adapter.name);
    const document_section_t *data = document_find(job->document, "data");
    if (document_entry(data, "documents") != NULL && job->data.documents == DOCUMENTS_JOINED)
        JOB_REFUSE(job, "data", "documents", "joined: [train] phase is %s; expected apart",
                   names[phase]);
    job->data.documents = DOCUMENTS_APART;
    if (phase == PHASE_DPO && job_has_stage(job, STAGE_TRAIN) && job->dpo.reference == NULL &&
        job->import.from == NULL && job->adapter.name == NULL)
        JOB_REFUSE(job, "dpo", "reference",
                   "(none): a new model has nothing to compare with; expected a folder of "
                   "checkpoints, or [import] from");
    return LH_OK;
}

/* NULL, where none is named, is well. */
static lh_status_t check_rule_name(const job_t *job, const char *section, const char *rule)
{
    const char *colon = rule == NULL ? NULL : strchr(rule, ':');
    if (rule != NULL && (colon == NULL || colon == rule || colon[1] == '\0'))
        JOB_REFUSE(job, section, "rule", "%s: expected plugin:rule, such as rules:adamw", rule);
    return LH_OK;
}

/* Of [optimizer], and of every group. */
static lh_status_t check_rules(const job_t *job)
{
    lh_status_t status = check_rule_name(job, "optimizer", job->optimizer.rule);
    for (uint32_t i = 0; status == LH_OK && i < job->group_count; i++) {
        char section[64];
        (void)snprintf(section, sizeof(section), "group.%s", job->groups[i].name);
        status = check_rule_name(job, section, job->groups[i].rule);
    }
    return status;
}

/* Rank counts do not matter here: a rank that gets fewer sequences than others pads. */
static lh_status_t check_train(job_t *job)
{
    job_train_t *t = &job->train;
    if (t->micro_batch == 0) t->micro_batch = t->batch;
    if (job->checkpoint.keep_best && t->evaluate_every == 0)
        JOB_REFUSE(job, "checkpoint", "keep_best",
                   "yes: nothing is evaluated; [train] evaluate_every was expected");
    if (job->checkpoint.apart && job->comm.border == BORDER_INT8)
        JOB_REFUSE(job, "comm", "border",
                   "int8: sites have checkpoint folders of their own: f32 or bf16 was expected, as "
                   "what rounding "
                   "has lost is known only after images are laid out");
    if (job->checkpoint.memory_every > 0 && job->comm.border == BORDER_INT8 && job->site_count > 1)
        JOB_REFUSE(
            job, "checkpoint", "memory_every",
            "%llu: with [comm] border = int8 between sites 0 was expected: what rounding has "
            "lost is known only after the memory is laid out",
            (unsigned long long)job->checkpoint.memory_every);
    if (t->micro_batch != 0 && t->batch % t->micro_batch != 0)
        JOB_REFUSE(job, "train", "batch", "%llu: expected a multiple of micro_batch = %llu",
                   (unsigned long long)t->batch, (unsigned long long)t->micro_batch);
    const uint64_t tokens = t->micro_batch *
                            t->sequence; /* 2^48 at most; 0: not a job that trains */
    if (tokens != 0 && t->max_documents > tokens)
        JOB_REFUSE(job, "train", "max_documents",
                   "%llu: expected at most the %llu tokens of a micro-batch",
                   (unsigned long long)t->max_documents, (unsigned long long)tokens);
    const lh_status_t status = check_phase(job);
    return status == LH_OK ? check_rules(job) : status;
}

/* Three numbers from 0 to JOB_SPLIT_MOST, not all 0. As Megatron reads it: three weights, not
 * percentages. */
static bool is_split_weights(const char *text)
{
    char copy[128], *rest = copy;
    double sum = 0, part;
    uint32_t parts = 0;
    if (strlen(text) >= sizeof(copy)) return false;
    strcpy(copy, text);
    for (; rest != NULL; parts++, sum += part)
        if (!quantity_f64(text_trim(strsep(&rest, ",")), &part) || part < 0 ||
            part > JOB_SPLIT_MOST)
            return false;
    return parts == 3 && sum > 0;
}

/* Where valid and test are sets of their own the split is still checked, as it may be used again.
 */
static lh_status_t check_split(const job_t *job)
{
    if (!is_split_weights(job->data.split != NULL ? job->data.split : ""))
        JOB_REFUSE(job, "data", "split", "%s: expected three parts such as 969,30,1, of at most %g",
                   job->data.split != NULL ? job->data.split : "", JOB_SPLIT_MOST);
    return LH_OK;
}

/* Of a list with commas between: an empty path would be the folder itself. Also for a comma at
 * either end. */
static bool has_empty_item(const char *list)
{
    for (const char *at = list;; at++) {
        at += strspn(at, " \t");
        if (*at == ',' || *at == '\0') return true;
        at += strcspn(at, ",");
        if (*at == '\0') return false;
    }
}

/* max:N is taken apart again by the stage itself. */
static lh_status_t check_prepare(const job_t *job)
{
    const char *input = job->prepare.input;
    if (input != NULL && has_empty_item(input))
        JOB_REFUSE(job, "prepare", "input",
                   "%s: a path is empty; expected paths with commas between", input);
    uint64_t number;
    const char *text = job->prepare.on_error;
    const bool counted = text != NULL && text_starts(text, "max:") &&
                         quantity_u64(text + 4, &number);
    if (text != NULL && !counted && strcmp(text, "fail") != 0 && strcmp(text, "skip") != 0)
        JOB_REFUSE(job, "prepare", "on_error", "%s: expected fail, skip or max:N", text);
    return LH_OK;
}

/* A number of rows must be one; whether the model can have so many is the plugin's to say. */
static lh_status_t check_model_vocab(const job_t *job)
{
    uint64_t number;
    const char *vocab = job->model.vocab;
    if (vocab == NULL || strcmp(vocab, "from_tokenizer") == 0 || strcmp(vocab, "from_import") == 0)
        return LH_OK;
    if (!quantity_u64(vocab, &number) || number == 0)
        JOB_REFUSE(job, "model", "vocab", "%s: expected from_tokenizer, from_import or a number",
                   vocab);
    return LH_OK;
}

enum {
    HEX_DIGITS = 32,      /* alone: half a key */
    HEX_NAME_DIGITS = 64, /* of a file in a folder: shorter ones are names made of digests */
    CODED = 43,           /* base64 of 32 bytes, without = */
    WORD = 8,             /* names are words; base64 has a - or _ in 32 characters */
};

/* One pair of quotes, then 0x or what leads to the folder that a path starts from anyway. mem_free;
 * NULL without memory. */
static char *key_bare(const char *text)
{
    size_t length = strlen(text);
    if (length >= 2 && (*text == '"' || *text == '\'') && text[length - 1] == *text) {
        text++;
        length -= 2;
    }
    if (length > 2 && text[0] == '0' && (text[1] == 'x' || text[1] == 'X')) {
        text += 2;
        length -= 2;
    }
    while (length > 2 && text[0] == '.' && text[1] == '/') {
        text += 2;
        length -= 2;
    }
    return mem_text_n(text, length);
}

/* Two digits and a colon, as fingerprints are written, too. Colons may stand anywhere, as tools
 * differ in how they group digits. */
static bool key_is_hex(const char *text, size_t least)
{
    size_t digits = 0;
    for (; *text != '\0'; text++)
        if (isxdigit((unsigned char)*text))
            digits++;
        else if (*text != ':')
            return false;
    return digits >= least;
}

/* Either alphabet. Of 43 random characters, a digit or a sign is among nearly all. Upper case,
 * lower case and something else must all be there, and few joints: a long name of words has them
 * otherwise. */
static bool key_is_base64(const char *text)
{
    const size_t length = strcspn(text, "="), ends = strlen(text + length);
    size_t upper = 0, lower = 0, others = 0, joints = 0;
    if (length < CODED || ends > 2 || strspn(text + length, "=") != ends) return false;
    for (size_t i = 0; i < length; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (!isalnum(c) && strchr("+/-_", c) == NULL) return false;
        upper += isupper(c) != 0;
        lower += islower(c) != 0;
        joints += c == '-' || c == '_';
        others += !isalpha(c);
    }
    return upper > 0 && lower > 0 && others > 0 && joints <= length / WORD;
}

/* to_folder: whether the folder of the path is there, though the file itself may not be yet. */
static bool key_leads_somewhere(const char *folder, const char *path, bool to_folder)
{
    char *above = to_folder ? path_folder(path) : mem_text(path);
    char *whole = above == NULL ? NULL : path_join(folder, above);
    const bool there = whole != NULL && file_exists(whole);
    mem_free(whole);
    mem_free(above);
    return there;
}

/* "/mnt/Team7/...", of which a part may not be there yet. */
static bool key_is_absolute(const char *path)
{
    if (*path != '/') return false;
    char *first = mem_text_n(path, 1 + strcspn(path + 1, "/"));
    const bool there = first != NULL && first[1] != '\0' && file_exists(first);
    mem_free(first);
    return there;
}

/* Errs to the side of asking: a file that is really named like a key can be renamed, a key that was
 * logged can't be unlogged. */
bool job_pasted_key(const char *text, const char *folder)
{
    char *value = key_bare(text);
    if (value == NULL) {
        fail_clear();
        return false;
    }
    const char *name = path_name(value);
    bool pasted = key_is_hex(value, HEX_DIGITS) || key_is_hex(name, HEX_NAME_DIGITS);
    if (!pasted && !key_leads_somewhere(folder, value, false))
        pasted = key_is_base64(name) || (key_is_base64(value) && !key_is_absolute(value) &&
                                         !key_leads_somewhere(folder, value, true));
    mem_free(value);
    return pasted;
}

/* A key pasted where its file belongs would end up in logs, reports and checkpoints. It is not
 * repeated here. */
static lh_status_t check_secret_value(const job_t *job)
{
    char where[JOB_WHERE_BYTES];
    const document_entry_t *e = document_entry(document_find(job->document, "launch"), "secret");
    char *folder = document_folder(e, job->base);
    if (folder == NULL) return LH_NO_MEMORY;
    const bool pasted = e != NULL && job_pasted_key(e->value, folder);
    mem_free(folder);
    if (!pasted) return LH_OK;
    job_where(job, "launch", "secret", where);
    return fail(
        LH_INVALID,
        "%s: secret is a key; name a file of mode 0600 that holds it, and make a new key, as "
        "this one has been written down",
        where);
}

/* The numbers of an address too, of IPv6 with its card: fe80::1%eth0. A leading dash might be read
 * as an option by what it is handed to. */
static bool is_address(const char *address)
{
    bool good = *address != '\0' && *address != '-' && strlen(address) < LAUNCH_ADDRESS;
    for (const char *c = address; *c != '\0'; c++)
        good = good && (isalnum((unsigned char)*c) || strchr(".-_:%", *c) != NULL);
    return good;
}

static lh_status_t check_addresses(const job_t *job)
{
    static const char expected[] = "expected a host's name or an address";
    const char *address = job->launch.address;
    if (address != NULL && !is_address(address))
        JOB_REFUSE(job, "launch", "address", "%s: %s", address, expected);
    for (uint32_t i = 0; i < job->site_count; i++) {
        const job_site_t *site = &job->sites[i];
        char section[64];
        (void)snprintf(section, sizeof(section), "site.%s", site->name);
        for (uint32_t k = 0; k < site->host_count + site->spare_count; k++) {
            const job_host_t *h = k < site->host_count ? &site->hosts[k]
                                                       : &site->spares[k - site->host_count];
            if (h->address != NULL && !is_address(h->address))
                JOB_REFUSE(job, section, "addresses", "... %s: %s", h->address, expected);
        }
    }
    return LH_OK;
}

/* A machine is known by its name: a spare that is a host as well would be in two places at once. Of
 * more machines than a layout has room for none may come and go, and spares would wait for ever; so they
 * would in a job that ends with its first loss, and in one of a single host, as only those that have met
 * with a host may give its ranks to another machine. */
static lh_status_t check_spares(const job_t *job, uint32_t machines)
{
    for (uint32_t i = 0; i < job->site_count; i++) {
        char section[64];
        if (job->sites[i].spare_count == 0) continue;
        const char *spare = job->sites[i].spares[0].name;
        (void)snprintf(section, sizeof(section), "site.%s", job->sites[i].name);
        if (machines > MEMBERS_MOST)
            JOB_REFUSE(job, section, "spare", "... %s: the job has %u hosts; expected at most %d",
                       spare, machines, MEMBERS_MOST);
        if (members_hosts(job) == 1)
            JOB_REFUSE(job, section, "spare",
                       "... %s: the job has one host, and once that is lost nobody is left who may "
                       "give its ranks away; expected another host",
                       spare);
        if (job->launch.restarts == 0)
            JOB_REFUSE(job, section, "spare",
                       "... %s: [launch] restart is 0, so that no ranks start again; expected 1 or "
                       "more",
                       spare);
    }
    for (uint32_t m = members_hosts(job); m < members_places(job); m++) {
        machine_t spare, other;
        char section[64];
        members_machine(job, m, &spare);
        (void)snprintf(section, sizeof(section), "site.%s", spare.site->name);
        for (uint32_t k = 0; k < m; k++) {
            members_machine(job, k, &other);
            if (strcmp(other.host, spare.host) == 0)
                JOB_REFUSE(job, section, "spare",
                           "... %s: it is %s of [site.%s] already; expected another machine",
                           spare.host, other.spare ? "a spare" : "a host", other.site->name);
        }
    }
    return LH_OK;
}

/* One that is lost with a half of the job would give that half's vote away. */
static lh_status_t check_witness(const job_t *job)
{
    const char *witness = job->launch.witness;
    bool good = witness != NULL && *witness != '-' && strlen(witness) < JOB_HOST_NAME;
    if (witness == NULL) return LH_OK;
    for (const char *c = witness; *c != '\0'; c++)
        good = good && (isalnum((unsigned char)*c) || strchr(".-_", *c) != NULL);
    if (!good || strcmp(witness, "localhost") == 0)
        JOB_REFUSE(job, "launch", "witness",
                   "%s: expected the name of another machine, as it calls itself or as --host says",
                   witness);
    if (!members_change(job))
        JOB_REFUSE(job, "launch", "witness",
                   "%s: nobody goes on without the others, so that it decides nothing; expected "
                   "[launch] go_on_with, or spares",
                   witness);
    for (uint32_t m = 0; m < members_places(job); m++) {
        machine_t other;
        members_machine(job, m, &other);
        if (members_same_host(other.host, witness))
            JOB_REFUSE(job, "launch", "witness",
                       "%s: it is %s of [site.%s], and would be lost with it; expected another "
                       "machine",
                       witness, other.spare ? "a spare" : "a host", other.site->name);
    }
    return LH_OK;
}

/* Which machines may come and go. */
static lh_status_t check_members(const job_t *job)
{
    static const char *const names[] = {
        [GO_ON_NONE] = "none", [GO_ON_SITES] = "sites", [GO_ON_RANKS] = "ranks"};
    const job_launch_t *how = &job->launch;
    uint32_t machines = how->witness != NULL, known = 0;
    for (uint32_t i = 0; i < job->site_count; i++) {
        machines += job->sites[i].host_count + job->sites[i].spare_count;
        known += how->prefer != NULL && strcmp(how->prefer, job->sites[i].name) == 0;
    }
    if (how->prefer != NULL && known == 0)
        JOB_REFUSE(job, "launch", "prefer", "%s: there is no [site.%s]", how->prefer, how->prefer);
    if (how->go_on_with != GO_ON_NONE && job->site_count == 0)
        JOB_REFUSE(job, "launch", "go_on_with",
                   "%s: the job has no [site.NAME]; expected hosts that may come and go",
                   names[how->go_on_with]);
    if (how->go_on_with == GO_ON_SITES && job->site_count == 1)
        JOB_REFUSE(job, "launch", "go_on_with",
                   "sites: the job has one site; expected ranks, or another site");
    if (how->go_on_with == GO_ON_RANKS && members_hosts(job) == 1)
        JOB_REFUSE(job, "launch", "go_on_with",
                   "ranks: the job has one host; expected none, or another host");
    if (how->go_on_with != GO_ON_NONE && machines > MEMBERS_MOST)
        JOB_REFUSE(job, "launch", "go_on_with", "%s: the job has %u hosts; expected at most %d",
                   names[how->go_on_with], machines, MEMBERS_MOST);
    if (how->restarts == 0 && how->go_on_with != GO_ON_NONE)
        JOB_REFUSE(job, "launch", "go_on_with",
                   "%s: [launch] restart is 0, so that no ranks start again; expected 1 or more",
                   names[how->go_on_with]);
    const lh_status_t status = check_spares(job, machines);
    return status == LH_OK ? check_witness(job) : status;
}

/* What the command line says comes later and is checked there. */
static lh_status_t check_generate(const job_t *job)
{
    if (job->generate.prompt != NULL && job->generate.ids != NULL)
        JOB_REFUSE(job, "generate", "ids", "%s: a prompt is set too; only one of them is read",
                   job->generate.ids);
    return LH_OK;
}

/* Of several mistakes the first that is found is told; the order has no other meaning. */
lh_status_t job_check(job_t *job)
{
    lh_status_t status = check_parallel(job);
    if (status == LH_OK) status = check_outage(job);
    if (status == LH_OK) status = check_collectives(job);
    if (status == LH_OK) status = check_train(job);
    if (status == LH_OK) status = check_split(job);
    if (status == LH_OK) status = check_prepare(job);
    if (status == LH_OK) status = check_model_vocab(job);
    if (status == LH_OK) status = check_secret_value(job);
    if (status == LH_OK) status = check_addresses(job);
    if (status == LH_OK) status = check_members(job);
    if (status == LH_OK) status = check_generate(job);
    return status;
}

/* Where the job writes stands in JSON files, which hold UTF-8. */
lh_status_t job_check_written(const job_t *job)
{
    const char *const written[] = {job->pipeline.folder, job->prepare.output,
                                   job->checkpoint.folder, job->export.folder};
    for (size_t i = 0; i < sizeof(written) / sizeof(written[0]); i++)
        if (!text_utf8_valid(written[i], strlen(written[i])))
            return fail(LH_INVALID,
                        "%s: the path is not UTF-8; rename its folder, or name another in "
                        "[pipeline] folder",
                        written[i]);
    return LH_OK;
}
