/* cli_test.c - the command line, and that each command's table is whole. */
#include <unit/base/scratch_files.h>

#include <cli/cli.h>

static lh_status_t parse(const char *line, cli_t *out)
{
    static char text[512];
    static char *argv[32];
    int argc = 0;
    (void)snprintf(text, sizeof(text), "%s", line);
    for (char *rest = text; rest != NULL && argc < 31;)
        argv[argc++] = strsep(&rest, " ");
    argv[argc] = NULL;
    return cli_parse(argc, argv, out);
}

static void what_is_typed_ends_in_its_place(void **state)
{
    cli_t cli;
    (void)state;
    if (parse("longhaul check a.ini --set train.steps=3 --plugins=/p --set a.b=c", &cli) != LH_OK)
        FAIL_TEST("%s\n", fail_reason());
    assert_string_equal(cli.command->name, "check");
    assert_string_equal(cli.ini, "a.ini");
    assert_string_equal(cli.plugin_folders[0], "/p");
    assert_int_equal(cli.set_count, 2);
    assert_string_equal(cli.sets[0], "train.steps=3");
    assert_string_equal(cli.sets[1], "a.b=c");
    cli_free(&cli);

    assert_int_equal(parse("longhaul help train", &cli), LH_OK);
    assert_string_equal(cli.name, "train");
    cli_free(&cli);
    assert_int_equal(parse("longhaul train a.ini --resume --set train.steps=3 --help", &cli),
                     LH_OK);
    assert_string_equal(cli.command->name, "help");
    assert_string_equal(cli.help_of->name, "train");
    assert_null(cli.ini);
    assert_int_equal(cli.set_count, 0);
    cli_free(&cli);
    assert_int_equal(parse("longhaul check --plugins /a --plugins /b a.ini", &cli), LH_OK);
    assert_int_equal(cli.plugin_folder_count, 2);
    assert_string_equal(cli.plugin_folders[1], "/b");
    cli_free(&cli);
    assert_int_equal(parse("longhaul --help", &cli), LH_OK);
    assert_string_equal(cli.command->name, "help");
    cli_free(&cli);
    assert_int_equal(parse("longhaul check -- --odd.ini", &cli), LH_OK);
    assert_string_equal(cli.ini, "--odd.ini");
    cli_free(&cli);
}

static const struct {
    const char *line, *sentence;
} refused[] = {
    {"longhaul", "no command"},
    {"longhaul chek a.ini", "there is no command 'chek'; did you mean 'check'?"},
    {"longhaul zzzzzzzz", "there is no command 'zzzzzzzz'"},
    {"longhaul check", "check: name a PIPELINE.ini"},
    {"longhaul check a.ini b.ini", "check: 'b.ini' is one argument too many"},
    {"longhaul check a.ini --sett x", "check has no flag --sett; did you mean --set?"},
    {"longhaul check a.ini --set", "--set wants a value"},
    {"longhaul plugins x", "plugins: 'x' is one argument too many"},
    {"longhaul plugins --set a.b=c", "plugins has no flag --set"},
    {"longhaul stop --plugins /a out/x", "stop has no flag --plugins"},
    {"longhaul stop --now", "stop which run? [pipeline] folder was expected"},
    {"longhaul bench loops", "bench measures: device, collectives, links; not 'loops'"},
    {"longhaul bench device --ranks 4", "bench device: --ranks belongs to bench collectives"},
    {"longhaul bench collectives --device x",
     "bench collectives: --device belongs to bench device"},
    {"longhaul status", "status of what? [pipeline] folder was expected"},
};

static void a_mistake_is_one_sentence(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        cli_t cli;
        if (parse(refused[i].line, &cli) == LH_OK) FAIL_TEST("'%s' was taken\n", refused[i].line);
        assert_string_equal(fail_reason(), refused[i].sentence);
    }
}

static void every_command_has_a_summary_a_function_and_flags_with_help(void **state)
{
    uint32_t count;
    const command_t *const *all = cli_commands(&count);
    (void)state;
    for (uint32_t i = 0; i < count; i++) {
        text_t usage = {0};
        assert_non_null(all[i]->run);
        assert_non_null(all[i]->summary);
        assert_null(all[i]->flags[CLI_FLAGS - 1].name); /* the table ends */
        for (uint32_t k = 0; all[i]->flags[k].name != NULL; k++)
            assert_non_null(all[i]->flags[k].help);
        for (uint32_t k = 0; k < i; k++)
            assert_string_not_equal(all[i]->name, all[k]->name);
        cli_usage(all[i], &usage);
        assert_non_null(strstr(usage.data, all[i]->name));
        if (all[i]->nameless != NULL && strstr(usage.data, "[NAME") != NULL)
            FAIL_TEST("'%s' has no use without NAME\n", usage.data);
        text_free(&usage);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_typed_ends_in_its_place),
        cmocka_unit_test(a_mistake_is_one_sentence),
        cmocka_unit_test(every_command_has_a_summary_a_function_and_flags_with_help),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
