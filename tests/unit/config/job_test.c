/* job_test.c - a whole pipeline file: what the core reads of it and what it refuses. */
#include <unit/base/scratch_files.h>

#include <math.h>
#include <sys/stat.h>

#include <config/job.h>
#include <config/job_load.h>
#include <longhaul/link.h>

#define COUNT(t) (sizeof(t) / sizeof((t)[0]))

static const char whole[] = "[pipeline]\n"
                            "name = shakespeare\n"
                            "stages = prepare train\n"
                            "[prepare]\n"
                            "input = a.jsonl, /data/b*.jsonl\n"
                            "tokenizer = vocab.json\n"
                            "[model]\n"
                            "plugin = llama\n"
                            "hidden = 128\n"
                            "[train]\n"
                            "sequence = 256\n"
                            "batch = 8\n"
                            "steps = 1k\n"
                            "[optimizer]\n"
                            "plugin = zero0\n"
                            "rule = rules:adamw\n"
                            "learning_rate = 1e-3\n"
                            "[device]\n"
                            "plugin = cpu\n"
                            "[group.norms]\n"
                            "match = *.norm\n"
                            "[rule.adamw]\n"
                            "beta1 = 0.8\n";

static lh_status_t load(scratch_t *s, const char *text, const char *set, job_t **out)
{
    return job_load(scratch_text(s, "a.ini", text), &set, set == NULL ? 0 : 1, out);
}

static const char *inside(const scratch_t *s, const char *path)
{
    return behind_folder(s, path);
}

static void a_pipeline_is_typed_structs(void **state)
{
    job_t *job;
    if (load(*state, whole, NULL, &job) != LH_OK) FAIL_TEST("%s\n", fail_reason());
    assert_int_equal(job->stage_count, 2);
    assert_true(job_has_stage(job, STAGE_TRAIN));
    assert_false(job_has_stage(job, STAGE_EXPORT));
    assert_int_equal(job->train.steps, 1000);
    assert_int_equal(job->train.micro_batch, 8);
    assert_int_equal(job->train.precision, PRECISION_BF16);
    assert_int_equal(job->group_count, 1);
    assert_string_equal(job->groups[0].name, "norms");
    assert_string_equal(job->groups[0].match, "*.norm");
    assert_true(isnan(job->groups[0].decay));
    assert_true(job->groups[0].rate == 1);
    assert_null(job->after_step);
    assert_null(job->generate.prompt);
    assert_int_equal(job->limits.line_bytes, 64 << 20);
    job_free(job);
}

static void paths_are_against_the_ini_and_the_folder(void **state)
{
    scratch_t *s = *state;
    char expected[256];
    job_t *job;
    assert_int_equal(load(s, whole, NULL, &job), LH_OK);
    assert_string_equal(inside(s, job->pipeline.folder), "out/shakespeare");
    assert_string_equal(inside(s, job->prepare.tokenizer), "vocab.json");
    assert_string_equal(inside(s, job->prepare.output), "out/shakespeare/corpus");
    assert_string_equal(inside(s, job->checkpoint.folder), "out/shakespeare/checkpoints");
    (void)snprintf(expected, sizeof(expected), "%s/a.jsonl,/data/b*.jsonl", s->folder);
    assert_string_equal(job->prepare.input, expected);
    assert_string_equal(job->eval.data, "valid");
    char *path = job_path(job, "train.log");
    assert_string_equal(inside(s, path), "out/shakespeare/train.log");
    mem_free(path);
    job_free(job);
    assert_int_equal(load(s, whole, "eval.data=held_out.jsonl", &job), LH_OK);
    assert_string_equal(inside(s, job->eval.data), "held_out.jsonl");
    job_free(job);
}

static const struct {
    const char *set, *sentence;
} refused[] = {
    {"trian.steps=3", "command line: unknown section [trian]; did you mean [train]?"},
    {"zzzzzz.steps=3", "command line: unknown section [zzzzzz]"},
    {"group.x.rate=3", "command line:0: "},
    {"transport.wam.plugin=x",
     "command line: unknown section [transport.wam]; did you mean [transport.wan]?"},
    {"launch.ranks=2", "command line: unknown key 'ranks' in [launch]"},
    {"launch.restart=1001",
     "command line: restart = 1001: expected auto or a whole number from 0 to 1000"},
    {"launch.ranks_per_node=0", "command line: ranks_per_node = 0: expected 1..4096"},
    {"parallel.tensor=2",
     "command line: tensor = 2: tensor parallelism is not built yet; expected 1"},
    {"parallel.pipeline=2",
     "command line: pipeline = 2: pipeline parallelism is not built yet; expected 1"},
    {"comm.chunk=3", "command line: chunk = 3: expected 0, which chooses, or 1024 on"},
    {"transport.wan.outage=121s", "command line: outage = 121 s: longer than [comm] timeout = 120 "
                                  "s, after which a transfer that "
                                  "stands still ends the job; expected at most as long"},
    {"comm.algorithm=rings",
     "command line: algorithm = rings: expected one of auto|direct|ring|halving; did you mean "
     "'ring'?"},
    {"site.a.hosts=x:0",
     "command line: hosts = ... x:0: expected 1 to 4096 ranks behind the colon"},
    {"site.a.hosts=x, ,y", "command line: hosts = ... : a host's name is missing"},
    {"site.a.hosts=x y:2",
     "command line: hosts = ... x y:2: a host's name holds letters, digits, '.', '-' and '_'"},
    {"site.a.hosts=x:2, x:1", "command line: hosts = ... x: named twice in [site.a]"},
    {"site.a.host=x", "command line: unknown key 'host' in [site.a]; did you mean 'hosts'?"},
    {"train.stepz=3", "command line: unknown key 'stepz' in [train]; did you mean 'steps'?"},
    {"train.micro_batch=3", "a.ini:12: batch = 8: expected a multiple of micro_batch = 3"},
    {"train.max_documents=2049",
     "command line: max_documents = 2049: expected at most the 2048 tokens of a micro-batch"},
    {"train.max_documents=18446744073709551615",
     "command line: max_documents = 18446744073709551615: expected at most the 2048 tokens of a "
     "micro-batch"},
    {"train.precision=eightbit", "command line: precision = eightbit: expected one of bf16|f32"},
    {"pipeline.stages=prepare tarin",
     "command line: stages = ... tarin: no such stage; did you mean 'train'?"},
    {"pipeline.stages=train train", "command line: stages = ... train: named twice"},
    {"pipeline.stages=,", "command line: stages = nothing: name at least one stage"},
    {"pipeline.stages=train import",
     "[import] is missing; it needs at least 'from' (Hugging Face folder to "
     "take weights from)"},
    {"pipeline.name=..", "command line: name = ..: it names a folder of out/"},
    {"pipeline.name=a/b", "command line: name = a/b: a name holds no '/'"},
    {"data.seed=4294967296", "command line: seed = 4294967296: expected 0..4294967295"},
    {"data.split=1,2",
     "command line: split = 1,2: expected three parts such as 969,30,1, of at most 1e+15"},
    {"data.split=0,0,0",
     "command line: split = 0,0,0: expected three parts such as 969,30,1, of at most 1e+15"},
    {"data.split=1,-1,1",
     "command line: split = 1,-1,1: expected three parts such as 969,30,1, of at most 1e+15"},
    {"data.split=1e308,1,1",
     "command line: split = 1e308,1,1: expected three parts such as 969,30,1, of at most 1e+15"},
    {"prepare.input=a,",
     "command line: input = a,: a path is empty; expected paths with commas between"},
    {"prepare.input=a, ,b",
     "command line: input = a, ,b: a path is empty; expected paths with commas between"},
    {"prepare.on_error=ignore", "command line: on_error = ignore: expected fail, skip or max:N"},
    {"prepare.on_error=max:x", "command line: on_error = max:x: expected fail, skip or max:N"},
    {"model.vocab=some",
     "command line: vocab = some: expected from_tokenizer, from_import or a number"},
    {"optimizer.rule=adamw",
     "command line: rule = adamw: expected plugin:rule, such as rules:adamw"},
    {"group.norms.decay=-1", "command line: decay = -1: expected a number from 0 on"},
    {"plugin.cpu.sha256=12ab", "command line: sha256 = 12ab: expected 64 hexadecimal digits"},
    {"plugin.cpu.sha=12ab", "command line: unknown key 'sha' in [plugin.cpu]"},
    {"generate.top_p=1.5", "command line: top_p = 1.5: expected 0..1"},
};

static void what_crosses_sections_is_checked(void **state)
{
    for (size_t i = 0; i < COUNT(refused); i++) {
        job_t *job = NULL;
        const lh_status_t status = load(*state, whole, refused[i].set, &job);
        if (status == LH_OK) FAIL_TEST("--set %s was taken\n", refused[i].set);
        assert_null(job);
        if (strcmp(refused[i].set, "group.x.rate=3") == 0)
            assert_string_equal(fail_reason(),
                                "command line: 'match' is missing in [group.x] (globs over "
                                "parameter names, comma-separated: blocks.*.norm)");
        else
            assert_string_equal(behind_folder(*state, fail_reason()), refused[i].sentence);
    }
}

static void a_pin_is_kept_in_lower_case(void **state)
{
    static const char digits[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789ABCDEF";
    char set[128];
    job_t *job;
    (void)snprintf(set, sizeof(set), "plugin.cpu.sha256=%s", digits);
    assert_int_equal(load(*state, whole, set, &job), LH_OK);
    assert_int_equal(job->pin_count, 1);
    assert_string_equal(job->pins[0].name, "cpu");
    assert_string_equal(job->pins[0].sha256,
                        "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef");
    assert_int_equal(job->limits.plugin_bytes, 256 << 20);
    job_free(job);
}

static void a_prompt_and_ids_exclude_each_other(void **state)
{
    const char *const sets[] = {"generate.prompt=x", "generate.ids=1,2"};
    job_t *job;
    assert_int_equal(job_load(scratch_text(*state, "a.ini", whole), sets, 2, &job), LH_INVALID);
    assert_string_equal(fail_reason(),
                        "command line: ids = 1,2: a prompt is set too; only one of them is read");
}

static void sites_number_ranks_through_their_hosts(void **state)
{
    const char *sets[] = {"launch.ranks_per_node=3", "site.tokyo.hosts=t1:2, t2",
                          "site.osaka.hosts=t1", "transport.wan.plugin=x"};
    const job_site_t *site;
    const job_host_t *host;
    job_t *job;
    const char *path = scratch_text(*state, "a.ini", whole);
    if (job_load(path, sets, COUNT(sets), &job) != LH_OK) FAIL_TEST("%s\n", fail_reason());
    assert_int_equal(job_ranks(job), 8);
    assert_int_equal(job->site_count, 2);
    job_rank_place(job, 4, &site, &host);
    assert_string_equal(site->name, "tokyo");
    assert_string_equal(host->name, "t2");
    assert_int_equal(host->first_rank, 2);
    job_rank_place(job, 5, &site, &host);
    assert_string_equal(site->name, "osaka");
    assert_string_equal(host->name, "t1");
    job_rank_place(job, 8, &site, &host);
    assert_null(site);
    assert_string_equal(job->transports[LH_LINK_WAN].plugin, "x");
    assert_null(job->transports[LH_LINK_SITE].plugin);
    assert_int_equal(job->transports[LH_LINK_NODE].security, LH_SECURITY_PLAIN);
    assert_int_equal(job->transports[LH_LINK_SITE].security, LH_SECURITY_PROVEN);
    assert_int_equal(job->transports[LH_LINK_WAN].security, LH_SECURITY_PRIVATE);
    job_free(job);
}

/* Over several machines ranks start again by themselves; on one, whatever sites it plays, not. */
static void restarts_go_by_the_number_of_machines(void **state)
{
    static const struct {
        const char *sets[3];
        uint32_t count;
        uint64_t restarts;
    } jobs[] = {
        {{"launch.ranks_per_node=4"}, 1, 0},
        {{"site.a.hosts=localhost:2", "site.b.hosts=localhost:2"}, 2, 0},
        {{"site.a.hosts=t1:2", "site.b.hosts=o1:2"}, 2, 3},
        {{"site.a.hosts=t1:2, t2:2"}, 1, 3},
        {{"site.a.hosts=t1:2, t2:2", "launch.restart=0"}, 2, 0},
        {{"launch.ranks_per_node=4", "launch.restart=7"}, 2, 7},
    };
    const char *path = scratch_text(*state, "a.ini", whole);
    for (size_t i = 0; i < COUNT(jobs); i++) {
        job_t *job;
        if (job_load(path, jobs[i].sets, jobs[i].count, &job) != LH_OK)
            FAIL_TEST("%s\n", fail_reason());
        assert_int_equal(job->launch.restarts, jobs[i].restarts);
        job_free(job);
    }
}

/* A spare is for ranks that start again, which they do by themselves where there is one. */
static void spares_want_ranks_that_start_again(void **state)
{
    const char *const sets[] = {"site.a.hosts=t1:2, o1:1", "site.a.spare=t2:2", "launch.restart=0"};
    const char *path = scratch_text(*state, "a.ini", whole);
    job_t *job;
    if (job_load(path, sets, 2, &job) != LH_OK) FAIL_TEST("%s\n", fail_reason());
    assert_int_equal(job->launch.restarts, 3);
    assert_int_equal(job->sites[0].spare_count, 1);
    job_free(job);
    assert_int_equal(job_load(path, sets, 3, &job), LH_INVALID);
    assert_string_equal(fail_reason(), "command line: spare = ... t2: [launch] restart is 0, so "
                                       "that no ranks start again; expected 1 or more");
}

/* Its ranks are given away by those that have met with a host: of a single one nobody is left. */
static void a_spare_wants_two_hosts(void **state)
{
    const char *const sets[] = {"site.a.hosts=t1:2", "site.a.spare=t2:2", "site.b.hosts=o1"};
    const char *path = scratch_text(*state, "a.ini", whole);
    job_t *job;
    assert_int_equal(job_load(path, sets, 2, &job), LH_INVALID);
    assert_string_equal(fail_reason(),
                        "command line: spare = ... t2: the job has one host, and once that is lost "
                        "nobody is left who may give its ranks away; expected another host");
    if (job_load(path, sets, 3, &job) != LH_OK) FAIL_TEST("%s\n", fail_reason());
    job_free(job);
}

/* A layout names each by a letter. */
static void a_site_has_26_spares(void **state)
{
    char spares[256] = "site.a.spare=s0";
    const char *const sets[] = {"site.a.hosts=t1, t2", spares};
    const char *path = scratch_text(*state, "a.ini", whole);
    job_t *job;
    for (uint32_t i = 1; i < 26; i++)
        (void)snprintf(spares + strlen(spares), sizeof(spares) - strlen(spares), ", s%u", i);
    if (job_load(path, sets, COUNT(sets), &job) != LH_OK) FAIL_TEST("%s\n", fail_reason());
    assert_int_equal(job->sites[0].spare_count, 26);
    job_free(job);
    (void)strcat(spares, ", s26");
    assert_int_equal(job_load(path, sets, COUNT(sets), &job), LH_INVALID);
    assert_string_equal(fail_reason(),
                        "command line: spare = ... s26: a site has at most 26 spares");
}

/* What is printed of an import needs no optimizer, whatever is trained later. */
static void of_one_stage_nothing_is_asked_that_others_need(void **state)
{
    static const char text[] = "[pipeline]\nname = x\nstages = prepare import train\n"
                               "[import]\nfrom = hf\n[model]\nplugin = from_import\n";
    const char *path = scratch_text(*state, "a.ini", text);
    job_t *job;
    assert_int_equal(job_load(path, NULL, 0, &job), LH_INVALID);
    if (job_load_for(path, NULL, 0, STAGE_IMPORT, &job) != LH_OK) FAIL_TEST("%s\n", fail_reason());
    assert_int_equal(job->stage_count, 1);
    assert_true(job_has_stage(job, STAGE_IMPORT));
    assert_string_equal(job->model.plugin, "from_import");
    job_free(job);
    assert_int_equal(job_load_for(path, NULL, 0, STAGE_TRAIN, &job), LH_INVALID);
    assert_string_equal(fail_reason(),
                        "[train] is missing; it needs at least 'sequence' (tokens of a "
                        "sequence)");
    const char *wrong = "pipeline.stages=imported";
    assert_int_equal(job_load_for(path, &wrong, 1, STAGE_IMPORT, &job), LH_INVALID);
}

static void a_section_that_no_stage_needs_may_be_absent(void **state)
{
    static const char text[] = "[pipeline]\nname = x\nstages = prepare\n"
                               "[prepare]\ninput = a\ntokenizer = b\n";
    job_t *job;
    if (load(*state, text, NULL, &job) != LH_OK) FAIL_TEST("%s\n", fail_reason());
    assert_null(job->model.plugin);
    assert_int_equal(job_require(job, STAGE_PREPARE), LH_OK);
    assert_int_equal(job_require(job, STAGE_TRAIN), LH_INVALID);
    assert_string_equal(
        fail_reason(),
        "[model] is missing; it needs at least 'plugin' (model plugin, from_import or spec)");
    job_free(job);
}

static void a_plugin_reads_its_own_keys(void **state)
{
    typedef struct config {
        uint64_t vocab, hidden;
    } config_t;
    static const lh_option_t rows[] = {
        LH_OPTION_U64(config_t, vocab, "vocab", NULL, NULL, "rows"),
        LH_OPTION_U64(config_t, hidden, "hidden", NULL, NULL, "width"),
    };
    const option_table_t table = {rows, COUNT(rows), "llama", sizeof(config_t), NULL};
    const option_given_t given = {"vocab", "64", "tokenizer", true};
    job_t *job;
    void *config;
    assert_int_equal(load(*state, whole, NULL, &job), LH_OK);
    assert_int_equal(job_parse_plugin(job, "model", &table, &given, 1, &config), LH_OK);
    assert_int_equal(((const config_t *)config)->hidden, 128);
    assert_int_equal(((const config_t *)config)->vocab, 64);
    job_free_config(&table, config);
    job_free(job);

    assert_int_equal(load(*state, whole, "model.hiden=3", &job), LH_OK);
    assert_int_equal(job_parse_plugin(job, "model", &table, &given, 1, &config), LH_INVALID);
    assert_string_equal(fail_reason(),
                        "command line: unknown key 'hiden' in [model]; did you mean 'hidden'?");
    job_free(job);
}

static void every_table_of_the_core_is_valid(void **state)
{
    uint32_t count;
    const job_section_t *all = job_sections(&count);
    (void)state;
    for (uint32_t i = 0; i < count; i++) {
        const option_table_t table = {all[i].rows, all[i].count, all[i].name, all[i].config_size,
                                      NULL};
        if (options_validate(&table) != LH_OK) FAIL_TEST("%s\n", fail_reason());
        assert_non_null(all[i].help);
    }
}

/* A recipe with data beside it, used from another folder. */
static void a_path_is_against_the_file_in_which_it_stands(void **state)
{
    job_t *job;
    scratch_t *s = *state;
    (void)mkdir(scratch_path(s, "recipe"), 0700);
    scratch_text(s, "recipe/base.ini", whole);
    static const char own[] = "include = recipe/base.ini\n[pipeline]\nname = mine\n"
                              "[eval]\ndata = held.jsonl\n";
    if (load(s, own, NULL, &job) != LH_OK) FAIL_TEST("%s\n", fail_reason());
    const char *second = strchr(job->prepare.input, ',');
    assert_non_null(second);
    assert_string_equal(second, ",/data/b*.jsonl");
    assert_int_equal(strncmp(inside(s, job->prepare.input), "recipe/a.jsonl,", 15), 0);
    assert_string_equal(inside(s, job->prepare.tokenizer), "recipe/vocab.json");
    assert_string_equal(inside(s, job->eval.data), "held.jsonl");
    assert_string_equal(inside(s, job->pipeline.folder), "out/mine");
    assert_string_equal(inside(s, job->checkpoint.folder), "out/mine/checkpoints");
    job_free(job);

    if (load(s, own, "prepare.tokenizer=other.json", &job) != LH_OK)
        FAIL_TEST("%s\n", fail_reason());
    assert_string_equal(inside(s, job->prepare.tokenizer), "other.json");
    job_free(job);

    scratch_text(s, "recipe/more.ini",
                 "[launch]\nsecret = a.key\n[eval]\ndata = held.jsonl\n"
                 "[pipeline]\nfolder = made\n");
    static const char both[] = "include = recipe/base.ini, recipe/more.ini\n[prepare]\n"
                               "input = a.jsonl\n";
    if (load(s, both, NULL, &job) != LH_OK) FAIL_TEST("%s\n", fail_reason());
    assert_string_equal(inside(s, job->prepare.input), "a.jsonl");
    assert_string_equal(inside(s, job->launch.secret), "recipe/a.key");
    assert_string_equal(inside(s, job->eval.data), "recipe/held.jsonl");
    assert_string_equal(inside(s, job->prepare.output), "recipe/made/corpus");
    job_free(job);
}

static void every_allocation_may_fail(void **state)
{
    scratch_t *s = *state;
    scratch_text(s, "a.ini", whole);
    uint64_t n = 1;
    for (;; n++) {
        job_t *job = NULL;
        mem_fail_at(n, false);
        const lh_status_t status = job_load(scratch_path(s, "a.ini"), NULL, 0, &job);
        mem_fail_at(0, false);
        job_free(job);
        if (status == LH_OK) break;
        if (status != LH_NO_MEMORY)
            FAIL_TEST("allocation %llu: %s\n", (unsigned long long)n, fail_reason());
    }
    assert_true(n > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pipeline_is_typed_structs),
        cmocka_unit_test(paths_are_against_the_ini_and_the_folder),
        cmocka_unit_test(what_crosses_sections_is_checked),
        cmocka_unit_test(a_pin_is_kept_in_lower_case),
        cmocka_unit_test(a_prompt_and_ids_exclude_each_other),
        cmocka_unit_test(sites_number_ranks_through_their_hosts),
        cmocka_unit_test(restarts_go_by_the_number_of_machines),
        cmocka_unit_test(spares_want_ranks_that_start_again),
        cmocka_unit_test(a_spare_wants_two_hosts),
        cmocka_unit_test(a_site_has_26_spares),
        cmocka_unit_test(of_one_stage_nothing_is_asked_that_others_need),
        cmocka_unit_test(a_section_that_no_stage_needs_may_be_absent),
        cmocka_unit_test(a_plugin_reads_its_own_keys),
        cmocka_unit_test(every_table_of_the_core_is_valid),
        cmocka_unit_test(a_path_is_against_the_file_in_which_it_stands),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
