/* chat_test.c - formats of conversations: the text that each model's own template makes, and which
 * of its ids are answers.
 *
 * The expected texts are what the chat_template of each model's published tokenizer_config.json
 * gives for these messages. Mistral's v0.3 leaves a system message out of a conversation that ends
 * with an answer; there they are what mistral-common makes of it, the text in the last user's
 * message, which is where the template has it for an answer to come. */
#include <unit/base/scratch_files.h>

#include <data/chat.h>

#define TOKENIZERS LH_TEST_DATA "/tokenizers/"

static const char talk[] = "{\"messages\": [{\"role\": \"system\", \"content\": \"Be kind.\"},"
                           "{\"role\": \"user\", \"content\": \" Hi \\u00e9\\n\"},"
                           "{\"role\": \"assistant\", \"content\": \"Hello!\"},"
                           "{\"role\": \"user\", \"content\": \"Bye\"},"
                           "{\"role\": \"assistant\", \"content\": \"So long.\"}]}";

typedef struct talker {
    tokenizer_t *tokenizer;
    tokenizer_scratch_t *scratch;
    chat_t *chat;
    chat_scratch_t room;
    token_ids_t ids, parts;
} talker_t;

static char messages_key[] = "messages", prompt_key[] = "prompt", answer_key[] = "answer";
static char chosen_key[] = "chosen", rejected_key[] = "rejected";

static lh_status_t talker_open(talker_t *t, const char *tokenizer, job_chat_t job)
{
    *t = (talker_t){0};
    job.messages = messages_key;
    job.prompt = prompt_key;
    job.answer = answer_key;
    job.chosen = chosen_key;
    job.rejected = rejected_key;
    assert_int_equal(tokenizer_load(tokenizer, NULL, &t->tokenizer), LH_OK);
    assert_int_equal(tokenizer_scratch_new(t->tokenizer, &t->scratch), LH_OK);
    return chat_new(&job, t->tokenizer, &t->chat);
}

static void talker_close(talker_t *t)
{
    chat_free(t->chat);
    chat_scratch_free(&t->room);
    token_ids_free(&t->ids);
    token_ids_free(&t->parts);
    tokenizer_scratch_free(t->scratch);
    tokenizer_free(t->tokenizer);
}

static lh_status_t say(talker_t *t, const char *line)
{
    t->ids.count = t->parts.count = 0;
    return chat_encode(t->chat, &t->room, t->scratch, line, strlen(line), &t->ids, &t->parts);
}

/* Parts decoded one by one, with a '|' between them. */
static void expect(talker_t *t, const char *wanted)
{
    text_t all = {0};
    size_t at = 0;
    for (size_t i = 0; i < t->parts.count; i++) {
        if (i > 0) text_append(&all, "|");
        assert_true(t->parts.ids[i] >= 0);
        assert_int_equal(
            tokenizer_decode(t->tokenizer, t->ids.ids + at, (size_t)t->parts.ids[i], false, &all),
            LH_OK);
        at += (size_t)t->parts.ids[i];
    }
    assert_int_equal(at, t->ids.count);
    assert_string_equal(all.data, wanted);
    text_free(&all);
}

/* A byte-level tokenizer without any of the formats' tokens, so that what is written can be read
 * back letter for letter; its begin and end token is <|endoftext|>. */
static void texts_are_those_of_the_models(void **state)
{
    (void)state;
    static const struct {
        uint32_t format;
        const char *text;
    } cases[] = {
        {CHAT_CHATML, "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n Hi \xC3\xA9\n"
                      "<|im_end|>\n<|im_start|>assistant\n|Hello!<|im_end|>|\n<|im_start|>user\nBye"
                      "<|im_end|>\n<|im_start|>assistant\n|So long.<|im_end|>|\n"},
        {CHAT_LLAMA2, "<|endoftext|>[INST] <<SYS>>\nBe kind.\n<</SYS>>\n\n Hi \xC3\xA9 [/INST]| "
                      "Hello! <|endoftext|>|<|endoftext|>[INST] Bye [/INST]| So long. "
                      "<|endoftext|>"},
        {CHAT_LLAMA3, "<|endoftext|><|start_header_id|>system<|end_header_id|>\n\nBe kind."
                      "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi \xC3\xA9<|eot_id|>"
                      "<|start_header_id|>assistant<|end_header_id|>\n\n|Hello!<|eot_id|>|"
                      "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
                      "<|start_header_id|>assistant<|end_header_id|>\n\n|So long.<|eot_id|>"},
        {CHAT_MISTRAL, "<|endoftext|>[INST]  Hi \xC3\xA9\n[/INST]| Hello!<|endoftext|>|"
                       "[INST] Be kind.\n\nBye[/INST]| So long.<|endoftext|>"},
        {CHAT_GEMMA, "<|endoftext|><start_of_turn>user\nBe kind.\n\nHi \xC3\xA9<end_of_turn>\n"
                     "<start_of_turn>model\n|Hello!<end_of_turn>|\n<start_of_turn>user\nBye"
                     "<end_of_turn>\n<start_of_turn>model\n|So long.<end_of_turn>|\n"},
        {CHAT_PHI3, "<|system|>\nBe kind.<|end|>\n<|user|>\n Hi \xC3\xA9\n<|end|>\n<|assistant|>\n|"
                    "Hello!<|end|>|\n<|user|>\nBye<|end|>\n<|assistant|>\n|So long.<|end|>|\n"},
        {CHAT_ZEPHYR, "<|system|>\nBe kind.<|endoftext|>\n<|user|>\n Hi \xC3\xA9\n<|endoftext|>\n"
                      "<|assistant|>\n|Hello!<|endoftext|>|\n<|user|>\nBye<|endoftext|>\n"
                      "<|assistant|>\n|So long.<|endoftext|>|\n"},
        {CHAT_PLAIN, "Be kind.\n Hi \xC3\xA9\n|Hello!<|endoftext|>|Bye|So long.<|endoftext|>"},
        {CHAT_QWEN2, "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n Hi \xC3\xA9\n"
                     "<|im_end|>\n<|im_start|>assistant\n|Hello!<|im_end|>|\n<|im_start|>user\nBye"
                     "<|im_end|>\n<|im_start|>assistant\n|So long.<|im_end|>|\n"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        talker_t t;
        assert_int_equal(
            talker_open(&t, TOKENIZERS "gpt2-tiny", (job_chat_t){.format = cases[i].format}),
            LH_OK);
        if (say(&t, talk) != LH_OK) FAIL_TEST("%s\n", fail_reason());
        expect(&t, cases[i].text);
        talker_close(&t);
    }
}

/* As Python has it, an ideographic space and one that does not break among it. */
static void white_space_is_that_of_the_templates(void **state)
{
    (void)state;
    talker_t t;
    assert_int_equal(talker_open(&t, TOKENIZERS "gpt2-tiny", (job_chat_t){.format = CHAT_LLAMA3}),
                     LH_OK);
    assert_int_equal(say(&t, "{\"prompt\": \"\\u3000a \\u00e9\\u00a0\\u001f\","
                             " \"answer\": \"\\u2003b \\u3000\"}"),
                     LH_OK);
    expect(&t, "<|endoftext|><|start_header_id|>user<|end_header_id|>\n\na \xC3\xA9<|eot_id|>"
               "<|start_header_id|>assistant<|end_header_id|>\n\n|b<|eot_id|>");
    assert_int_equal(say(&t, "{\"prompt\": \"\\u3000\", \"answer\": \"b\"}"), LH_OK);
    talker_close(&t);
}

/* Llama 2's strips what a user says, the system's text in it and all; Mistral's v0.3 the answers
 * alone; Llama 3's each message; Gemma 3's each but the system's. */
static void each_template_strips_what_it_strips(void **state)
{
    (void)state;
    static const char line[] = "{\"messages\": [{\"role\": \"system\", \"content\": \" S\\n\"},"
                               "{\"role\": \"user\", \"content\": \" a \"},"
                               "{\"role\": \"assistant\", \"content\": \" b \"},"
                               "{\"role\": \"user\", \"content\": \" c \"},"
                               "{\"role\": \"assistant\", \"content\": \" d \"}]}";
    static const struct {
        uint32_t format;
        const char *text;
    } cases[] = {
        {CHAT_LLAMA2, "<|endoftext|>[INST] <<SYS>>\n S\n\n<</SYS>>\n\n a [/INST]| b <|endoftext|>|"
                      "<|endoftext|>[INST] c [/INST]| d <|endoftext|>"},
        {CHAT_MISTRAL, "<|endoftext|>[INST]  a [/INST]| b<|endoftext|>|"
                       "[INST]  S\n\n\n c [/INST]| d<|endoftext|>"},
        {CHAT_GEMMA, "<|endoftext|><start_of_turn>user\n S\n\n\na<end_of_turn>\n"
                     "<start_of_turn>model\n|b<end_of_turn>|\n<start_of_turn>user\nc<end_of_turn>\n"
                     "<start_of_turn>model\n|d<end_of_turn>|\n"},
        {CHAT_LLAMA3, "<|endoftext|><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
                      "<|start_header_id|>user<|end_header_id|>\n\na<|eot_id|>"
                      "<|start_header_id|>assistant<|end_header_id|>\n\n|b<|eot_id|>|"
                      "<|start_header_id|>user<|end_header_id|>\n\nc<|eot_id|>"
                      "<|start_header_id|>assistant<|end_header_id|>\n\n|d<|eot_id|>"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        talker_t t;
        assert_int_equal(
            talker_open(&t, TOKENIZERS "gpt2-tiny", (job_chat_t){.format = cases[i].format}),
            LH_OK);
        if (say(&t, line) != LH_OK) FAIL_TEST("%s\n", fail_reason());
        expect(&t, cases[i].text);
        talker_close(&t);
    }
}

/* Mistral's v0.3 puts it into the last user's message, of a line to answer as of one to train on,
 * and of each of two answers by itself; Gemma's into the first. Parts of one's own change no
 * place. */
static void a_system_message_stands_where_the_template_has_it(void **state)
{
    (void)state;
#define SAYS(role, text) "{\"role\": \"" role "\", \"content\": \"" text "\"}"
#define TALK SAYS("system", "S") "," SAYS("user", "a") "," SAYS("assistant", "b")
    static char joined[] = "{system}: {content}";
    static const struct {
        uint32_t format;
        bool pairs, own;
        const char *line, *text;
    } cases[] = {
        {CHAT_MISTRAL, false, false, "{\"messages\": [" TALK "]}",
         "<|endoftext|>[INST] S\n\na[/INST]| b<|endoftext|>"},
        {CHAT_MISTRAL, false, false,
         "{\"messages\": [" TALK "," SAYS("assistant", "c") "," SAYS("user", "d") "," SAYS(
             "user", "e") "," SAYS("assistant", "f") "]}",
         "<|endoftext|>[INST] a[/INST]| b<|endoftext|> c<|endoftext|>|[INST] d[/INST]"
         "[INST] S\n\ne[/INST]| f<|endoftext|>"},
        {CHAT_MISTRAL, false, true,
         "{\"messages\": [" TALK "," SAYS("user", "c") "," SAYS("assistant", "d") "]}",
         "<|endoftext|>[INST] a[/INST]| b<|endoftext|>|[INST] S: c[/INST]| d<|endoftext|>"},
        {CHAT_GEMMA, false, false,
         "{\"messages\": [" TALK "," SAYS("user", "c") "," SAYS("assistant", "d") "]}",
         "<|endoftext|><start_of_turn>user\nS\n\na<end_of_turn>\n<start_of_turn>model\n|"
         "b<end_of_turn>|\n<start_of_turn>user\nc<end_of_turn>\n<start_of_turn>model\n|"
         "d<end_of_turn>|\n"},
        {CHAT_MISTRAL, true, false,
         "{\"prompt\": [" TALK "," SAYS("user", "c") "], \"chosen\": \"d\", \"rejected\": [" SAYS(
             "assistant", "e") "," SAYS("user", "f") "," SAYS("assistant", "g") "]}",
         "<|endoftext|>[INST] a[/INST] b<|endoftext|>[INST] S\n\nc[/INST]| d<|endoftext|>||"
         "<|endoftext|>[INST] a[/INST] b<|endoftext|>[INST] c[/INST]| e<|endoftext|>|"
         "[INST] S\n\nf[/INST]| g<|endoftext|>"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        talker_t t;
        const job_chat_t job = {.format = cases[i].format,
                                .pairs = cases[i].pairs,
                                .joined = cases[i].own ? joined : NULL};
        assert_int_equal(talker_open(&t, TOKENIZERS "gpt2-tiny", job), LH_OK);
        if (say(&t, cases[i].line) != LH_OK) FAIL_TEST("%s\n", fail_reason());
        expect(&t, cases[i].text);
        talker_close(&t);
    }
    static const char asks[] = "{\"messages\": [" TALK "," SAYS("user", "c") "]}";
    static const char alone[] = "{\"messages\": [" SAYS("system", "S") "," SAYS("assistant",
                                                                                "b") "]}";
    talker_t t;
    text_t text = {0};
    assert_int_equal(talker_open(&t, TOKENIZERS "gpt2-tiny", (job_chat_t){.format = CHAT_MISTRAL}),
                     LH_OK);
    assert_int_equal(chat_encode_line(t.chat, &t.room, t.scratch, asks, strlen(asks), &t.ids),
                     LH_OK);
    assert_int_equal(tokenizer_decode(t.tokenizer, t.ids.ids, t.ids.count, false, &text), LH_OK);
    assert_string_equal(text.data,
                        "<|endoftext|>[INST] a[/INST] b<|endoftext|>[INST] S\n\nc[/INST]");
    assert_int_equal(say(&t, alone), LH_INVALID);
    assert_string_equal(fail_reason(), "message 2: role 'assistant' found, expected 'user', whose "
                                       "message holds the system's in the format mistral");
    text_free(&text);
    talker_close(&t);
#undef TALK
#undef SAYS
}

/* Qwen 2 writes a system message where a conversation has none, in the parts that the job names,
 * for each of two answers and not trained on; ChatML does not. */
static void a_conversation_without_a_system_message_gets_that_of_the_format(void **state)
{
    (void)state;
#define DEFAULT "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
#define ASKED "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n|"
    static char system[] = "({content})\\n";
    static const struct {
        uint32_t format;
        bool pairs, own;
        const char *line, *text;
    } cases[] = {
        {CHAT_QWEN2, false, false, "{\"prompt\": \"a\", \"answer\": \"b\"}",
         DEFAULT ASKED "b<|im_end|>|\n"},
        {CHAT_CHATML, false, false, "{\"prompt\": \"a\", \"answer\": \"b\"}",
         ASKED "b<|im_end|>|\n"},
        {CHAT_QWEN2, false, true, "{\"prompt\": \"a\", \"answer\": \"b\"}",
         "(You are a helpful assistant.)\n" ASKED "b<|im_end|>|\n"},
        {CHAT_QWEN2, true, false, "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}",
         DEFAULT ASKED "b<|im_end|>|\n||" DEFAULT ASKED "c<|im_end|>|\n"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        talker_t t;
        const job_chat_t job = {.format = cases[i].format,
                                .pairs = cases[i].pairs,
                                .system = cases[i].own ? system : NULL};
        assert_int_equal(talker_open(&t, TOKENIZERS "gpt2-tiny", job), LH_OK);
        if (say(&t, cases[i].line) != LH_OK) FAIL_TEST("%s\n", fail_reason());
        expect(&t, cases[i].text);
        talker_close(&t);
    }
#undef ASKED
#undef DEFAULT
}

/* As the templates end with add_generation_prompt; a blank there would be of the answer's token. */
static void answers_begin_as_those_of_the_models(void **state)
{
    (void)state;
    static const struct {
        uint32_t format;
        const char *text;
    } cases[] = {
        {CHAT_CHATML, "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"},
        {CHAT_LLAMA2, "<|endoftext|>[INST] Bye [/INST]"},
        {CHAT_LLAMA3, "<|endoftext|><|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
                      "<|start_header_id|>assistant<|end_header_id|>\n\n"},
        {CHAT_MISTRAL, "<|endoftext|>[INST] Bye[/INST]"},
        {CHAT_GEMMA, "<|endoftext|><start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n"},
        {CHAT_PHI3, "<|user|>\nBye<|end|>\n<|assistant|>\n"},
        {CHAT_ZEPHYR, "<|user|>\nBye<|endoftext|>\n<|assistant|>\n"},
        {CHAT_PLAIN, "Bye"},
        {CHAT_QWEN2, "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
                     "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"},
        {CHAT_QWEN25,
         "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
         "assistant.<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"},
    };
    static const char *const lines[] = {
        "{\"prompt\": \"Bye\"}", "{\"messages\": [{\"role\": \"user\", \"content\": \"Bye\"}]}"};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        talker_t t;
        assert_int_equal(
            talker_open(&t, TOKENIZERS "gpt2-tiny", (job_chat_t){.format = cases[i].format}),
            LH_OK);
        for (int how = 0; how < 3; how++) {
            text_t text = {0};
            t.ids.count = 0;
            const lh_status_t status = how == 2 ? chat_encode_prompt(t.chat, &t.room, t.scratch,
                                                                     "Bye", 3, &t.ids)
                                                : chat_encode_line(t.chat, &t.room, t.scratch,
                                                                   lines[how], strlen(lines[how]),
                                                                   &t.ids);
            assert_int_equal(status, LH_OK);
            assert_int_equal(tokenizer_decode(t.tokenizer, t.ids.ids, t.ids.count, false, &text),
                             LH_OK);
            assert_string_equal(text.data, cases[i].text);
            text_free(&text);
        }
        talker_close(&t);
    }
}

/* Only what the tokenizer has as one token ends an answer. */
static void answers_end_with_a_token_of_the_format(void **state)
{
    (void)state;
    static const struct {
        uint32_t format;
        const char *tokenizer;
        bool has;
    } cases[] = {{CHAT_PLAIN, TOKENIZERS "gpt2-tiny", true},
                 {CHAT_CHATML, TOKENIZERS "gpt2-tiny", false},
                 {CHAT_LLAMA2, TOKENIZERS "stories260K", true},
                 {CHAT_MISTRAL, TOKENIZERS "stories260K", true}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        talker_t t;
        int32_t end = 0;
        assert_int_equal(
            talker_open(&t, cases[i].tokenizer, (job_chat_t){.format = cases[i].format}), LH_OK);
        assert_int_equal(chat_end(t.chat, t.scratch, &end), LH_OK);
        assert_int_equal(end, cases[i].has ? tokenizer_special(t.tokenizer)->eod : -1);
        talker_close(&t);
    }
}

static void there_must_be_something_to_answer(void **state)
{
    (void)state;
    talker_t t;
    static const struct {
        const char *line, *sentence;
    } cases[] = {
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", "
         "\"content\": \"b\"}]}",
         "the last message is of role 'assistant', expected a user's to answer"},
        {"{\"messages\": [{\"role\": \"system\", \"content\": \"a\"}]}",
         "the last message is of role 'system', expected a user's to answer"},
        {"{\"messages\": []}", "a list of messages was expected"},
        {"{\"answer\": \"a\"}", "neither 'messages' nor 'prompt' is there"},
        {"{\"prompt\": 3}", "'prompt' is 3, a text was expected"},
    };
    assert_int_equal(talker_open(&t, TOKENIZERS "gpt2-tiny", (job_chat_t){.format = CHAT_GEMMA}),
                     LH_OK);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(chat_encode_line(t.chat, &t.room, t.scratch, cases[i].line,
                                          strlen(cases[i].line), &t.ids),
                         LH_INVALID);
        if (strstr(fail_reason(), cases[i].sentence) == NULL) FAIL_TEST("%s\n", fail_reason());
        assert_int_equal(t.ids.count, 0);
    }
    talker_close(&t);
}

/* A role with a NUL behind it is none of the three, in a line to train on and in one to answer. */
static void a_role_goes_on_behind_a_nul(void **state)
{
    (void)state;
    talker_t t;
    assert_int_equal(talker_open(&t, TOKENIZERS "gpt2-tiny", (job_chat_t){.format = CHAT_GEMMA}),
                     LH_OK);
    static const char *const lines[][2] = {
        {"{\"messages\": [{\"role\": \"user\\u0000x\", \"content\": \"a\"},"
         " {\"role\": \"assistant\", \"content\": \"b\"}]}",
         "message 1: role 'user\\x00x' found, expected system, user or assistant"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"},"
         " {\"role\": \"assistant\\u0000\", \"content\": \"b\"}]}",
         "message 2: role 'assistant\\x00' found, expected system, user or assistant"},
        {"{\"messages\": [{\"role\": \"system\\u0000\", \"content\": \"a\"}]}",
         "message 1: role 'system\\x00' found, expected system, user or assistant"},
    };
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        assert_int_equal(say(&t, lines[i][0]), LH_INVALID);
        assert_string_equal(fail_reason(), lines[i][1]);
    }
    static const char last[] = "{\"messages\": [{\"role\": \"user\\u0000\", \"content\": \"a\"}]}";
    assert_int_equal(chat_encode_line(t.chat, &t.room, t.scratch, last, strlen(last), &t.ids),
                     LH_INVALID);
    assert_string_equal(fail_reason(),
                        "message 1: role 'user\\x00' found, expected system, user or assistant");
    talker_close(&t);
}

/* Tokens that the tokenizer has become one id each, and a message may not spell them. */
static void tokens_of_a_format_are_tokens(void **state)
{
    (void)state;
    talker_t t;
    assert_int_equal(talker_open(&t, TOKENIZERS "mini-llama", (job_chat_t){.format = CHAT_LLAMA3}),
                     LH_OK);
    assert_int_equal(say(&t, "{\"prompt\": \"a\", \"answer\": \"b\"}"), LH_OK);
    const int32_t begin = tokenizer_special(t.tokenizer)->bos;
    assert_true(begin >= 0);
    assert_int_equal(t.ids.ids[0], begin);
    char *spelt = NULL;
    text_t word = {0}, line = {0};
    assert_int_equal(tokenizer_decode(t.tokenizer, &begin, 1, false, &word), LH_OK);
    text_printf(&line, "{\"prompt\": \"a %s\", \"answer\": \"b\"}", word.data);
    spelt = line.data;
    assert_int_equal(say(&t, spelt), LH_INVALID);
    assert_non_null(strstr(fail_reason(), "message 1 holds '"));
    assert_non_null(strstr(fail_reason(), "a token of the format llama3"));
    assert_int_equal(t.ids.count, 0);
    text_free(&word);
    text_free(&line);
    talker_close(&t);
}

static void parts_of_ones_own(void **state)
{
    (void)state;
    talker_t t;
    char user[] = "Q:\\s{content}\\n", reply[] = "A:{content}\\n", system[] = "{content}\\t";
    const job_chat_t job = {.format = CHAT_PLAIN, .user = user, .reply = reply, .system = system};
    assert_int_equal(talker_open(&t, TOKENIZERS "gpt2-tiny", job), LH_OK);
    assert_int_equal(say(&t, talk), LH_OK);
    expect(&t, "Be kind.\tQ:  Hi \xC3\xA9\n\nA:|Hello!\n|Q: Bye\nA:|So long.\n");
    talker_close(&t);
}

/* A second {content} would turn what is trained on and what is not round, from there to the end; a joined
 * text without one of its two words would leave a message out. */
static void parts_lose_no_message(void **state)
{
    (void)state;
    static const struct {
        char reply[32], joined[32];
        const char *sentence;
    } rows[] = {
        {"{content} = {content}", "",
         "[chat] reply = {content} = {content}: expected {content} once"},
        {"", "{system}", "[chat] joined = {system}: expected {content} in it"},
        {"", "{content}", "[chat] joined = {content}: expected {system} in it"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        talker_t t;
        char reply[32], joined[32];
        memcpy(reply, rows[i].reply, sizeof(reply));
        memcpy(joined, rows[i].joined, sizeof(joined));
        const job_chat_t job = {.format = CHAT_PLAIN,
                                .reply = reply[0] == '\0' ? NULL : reply,
                                .joined = joined[0] == '\0' ? NULL : joined};
        assert_int_equal(talker_open(&t, TOKENIZERS "gpt2-tiny", job), LH_INVALID);
        assert_non_null(strstr(fail_reason(), rows[i].sentence));
        talker_close(&t);
    }
}

/* Answers side by side are one; an empty one is none; the first id is nobody's answer. */
static void parts_are_never_empty(void **state)
{
    (void)state;
    talker_t t;
    char nothing[] = "{content}", none[] = "";
    const job_chat_t job = {.format = CHAT_PLAIN, .reply = nothing, .tail = none};
    assert_int_equal(talker_open(&t, TOKENIZERS "gpt2-tiny", job), LH_OK);
    assert_int_equal(say(&t, "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"},"
                             "{\"role\": \"assistant\", \"content\": \" b\"},"
                             "{\"role\": \"assistant\", \"content\": \" c\"}]}"),
                     LH_OK);
    expect(&t, "a| b c");
    assert_int_equal(say(&t, "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"},"
                             "{\"role\": \"assistant\", \"content\": \"\"},"
                             "{\"role\": \"user\", \"content\": \" b\"},"
                             "{\"role\": \"assistant\", \"content\": \" c\"}]}"),
                     LH_OK);
    expect(&t, "a b| c");
    assert_int_equal(say(&t, "{\"prompt\": \"\", \"answer\": \" c c\"}"), LH_OK);
    expect(&t, " c| c");
    assert_int_equal(say(&t, "{\"prompt\": \"a\", \"answer\": \"\"}"), LH_INVALID);
    assert_non_null(strstr(fail_reason(), "its answers have no token"));
    assert_int_equal(say(&t, "{\"prompt\": \"\", \"answer\": \"\"}"), LH_INVALID);
    talker_close(&t);
}

/* The 0 between two answers is an empty part in what expect() shows. */
static void pairs_are_two_conversations(void **state)
{
    (void)state;
    talker_t t;
    char reply[] = " {content}.", none[] = "";
    const job_chat_t job = {.format = CHAT_PLAIN, .pairs = true, .reply = reply, .tail = none};
    assert_int_equal(talker_open(&t, TOKENIZERS "gpt2-tiny", job), LH_OK);
    assert_int_equal(say(&t, "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c d\"}"),
                     LH_OK);
    expect(&t, "a| b.||a| c d.");
    const char *both = "{\"role\": \"user\", \"content\": \"a\"},"
                       "{\"role\": \"assistant\", \"content\": \"b\"}";
    char line[1024];
    (void)snprintf(line, sizeof(line),
                   "{\"chosen\": [%s, {\"role\": \"assistant\", \"content\": \"c\"}],"
                   " \"rejected\": [%s, {\"role\": \"assistant\", \"content\": \"d\"}]}",
                   both, both);
    assert_int_equal(say(&t, line), LH_OK);
    expect(&t, "a b.| c.||a b.| d.");
    assert_int_equal(say(&t, "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"b\"}"),
                     LH_INVALID);
    assert_non_null(strstr(fail_reason(), "are equal"));
    (void)snprintf(line, sizeof(line), "{\"chosen\": [%s], \"rejected\": [%s]}", both, both);
    assert_int_equal(say(&t, line), LH_INVALID);
    assert_non_null(strstr(fail_reason(), "'chosen' has no answer of its own"));
    assert_int_equal(t.ids.count + t.parts.count, 0);
    assert_int_equal(say(&t, "{\"chosen\": [{\"role\": \"user\", \"content\": \"a\"},"
                             " {\"role\": \"assistant\", \"content\": \"b\"}],"
                             " \"rejected\": [{\"role\": \"user\", \"content\": \"b\"},"
                             " {\"role\": \"assistant\", \"content\": \"c\"}]}"),
                     LH_INVALID);
    assert_non_null(strstr(fail_reason(), "'chosen' and 'rejected' have no message in common"));
    talker_close(&t);
}

/* UltraFeedback's lines: the prompt by itself, and once more at the front of both lists. */
static void a_prompt_that_both_answers_begin_with_counts_once(void **state)
{
    (void)state;
    static const struct {
        const char *prompt, *chosen, *rejected, *wanted;
    } lines[] = {
        {"\"a\"", "a", "a", "a| b.||a| c."},
        {"[{\"role\": \"user\", \"content\": \"a\"}]", "a", "a", "a| b.||a| c."},
        {"\"x\"", "a", "a", NULL},
        {"\"a\"", "a", "x", NULL},
        {"[{\"role\": \"system\", \"content\": \"a\"}]", "a", "a", NULL},
        {"[]", "a", "a", NULL},
        {"3", "a", "a", NULL},
    };
    talker_t t;
    char reply[] = " {content}.", none[] = "", line[1024];
    const job_chat_t job = {.format = CHAT_PLAIN, .pairs = true, .reply = reply, .tail = none};
    assert_int_equal(talker_open(&t, TOKENIZERS "gpt2-tiny", job), LH_OK);
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        (void)snprintf(line, sizeof(line),
                       "{\"prompt\": %s, \"chosen\": [{\"role\": \"user\", \"content\": \"%s\"},"
                       " {\"role\": \"assistant\", \"content\": \"b\"}],"
                       " \"rejected\": [{\"role\": \"user\", \"content\": \"%s\"},"
                       " {\"role\": \"assistant\", \"content\": \"c\"}]}",
                       lines[i].prompt, lines[i].chosen, lines[i].rejected);
        assert_int_equal(say(&t, line), lines[i].wanted == NULL ? LH_INVALID : LH_OK);
        if (lines[i].wanted != NULL)
            expect(&t, lines[i].wanted);
        else
            assert_non_null(strstr(fail_reason(), "'chosen' begins with a message of role 'user', "
                                                  "and 'prompt' is not what both answers begin"));
    }
    talker_close(&t);
}

static void a_format_needs_its_tokens(void **state)
{
    (void)state;
    talker_t t;
    assert_int_equal(talker_open(&t, TOKENIZERS "wordpiece", (job_chat_t){.format = CHAT_PLAIN}),
                     LH_INVALID);
    assert_non_null(strstr(fail_reason(), "has {eos}, but the tokenizer has no such token"));
    talker_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_those_of_the_models),
        cmocka_unit_test(white_space_is_that_of_the_templates),
        cmocka_unit_test(each_template_strips_what_it_strips),
        cmocka_unit_test(a_system_message_stands_where_the_template_has_it),
        cmocka_unit_test(a_conversation_without_a_system_message_gets_that_of_the_format),
        cmocka_unit_test(answers_begin_as_those_of_the_models),
        cmocka_unit_test(answers_end_with_a_token_of_the_format),
        cmocka_unit_test(there_must_be_something_to_answer),
        cmocka_unit_test(a_role_goes_on_behind_a_nul),
        cmocka_unit_test(tokens_of_a_format_are_tokens),
        cmocka_unit_test(parts_of_ones_own),
        cmocka_unit_test(parts_lose_no_message),
        cmocka_unit_test(parts_are_never_empty),
        cmocka_unit_test(pairs_are_two_conversations),
        cmocka_unit_test(a_prompt_that_both_answers_begin_with_counts_once),
        cmocka_unit_test(a_format_needs_its_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
