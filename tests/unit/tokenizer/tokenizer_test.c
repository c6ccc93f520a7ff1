/* tokenizer_test.c - what a tokenizer gives back, and which files it refuses with which sentence.
 */
#include <unit/base/scratch_files.h>

#include <base/philox.h>
#include <base/text.h>
#include <subword/token_pieces.h>
#include <unit/tokenizer/tokenizer_rig.h>

#define TOKENIZERS LH_TEST_DATA "/tokenizers/"

static void check_ids(machine_t *m, const char *text, token_spelling_t spelling, const int32_t *ids,
                      size_t count)
{
    machine_encode(m, text, strlen(text), spelling);
    assert_int_equal(m->ids.count, count);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(m->ids.ids[i], ids[i]);
}

static uint64_t draw(uint64_t *counter, uint64_t below)
{
    return (uint64_t)(philox_uniform(5, 1, (*counter)++) * (double)below);
}

static void byte_level_pieces_give_back_any_bytes(void **state)
{
    machine_t m;
    uint64_t counter = 0;
    char bytes[300];
    (void)state;

    machine_open(&m, TOKENIZERS "gpt2-tiny");
    for (int round = 0; round < 500; round++) {
        const size_t length = draw(&counter, sizeof(bytes));
        for (size_t i = 0; i < length; i++)
            bytes[i] = (char)draw(&counter, round % 2 == 0 ? 256 : 128);
        machine_encode(&m, bytes, length, SPELLING_AS_REFERENCE);
        m.text.length = 0;
        assert_int_equal(tokenizer_decode(m.t, m.ids.ids, m.ids.count, false, &m.text), LH_OK);
        assert_int_equal(m.text.length, length);
        if (length > 0) assert_memory_equal(m.text.data, bytes, length);
    }
    machine_close(&m);
}

static size_t random_text(uint64_t *counter, char *out, size_t characters)
{
    static const uint32_t limits[] = {0x80, 0x80, 0x300, 0x3100, 0x20000};
    size_t length = 0;

    for (size_t i = 0; i < characters; i++) {
        uint32_t c = (uint32_t)draw(counter, limits[draw(counter, 5)]);
        if (c >= 0xD800 && c <= 0xDFFF) c = ' ';
        if (draw(counter, 5) == 0) c = ' ';
        length += text_utf8_encode(c, out + length);
    }
    return length;
}

/* tokenizer.bin is the file that llama2.c's author exported; the other two were made from it. */
static void model_json_and_export_of_one_vocabulary_agree(void **state)
{
    machine_t json, model, bin;
    uint64_t of_model = 0, of_bin = 1;
    uint64_t counter = 0;
    char text[400];
    (void)state;

    machine_open(&json, TOKENIZERS "stories260K/tokenizer.json");
    machine_open(&model, TOKENIZERS "stories260K/tokenizer.model");
    machine_open(&bin, TOKENIZERS "stories260K/tokenizer.bin");
    for (int round = 0; round < 500; round++) {
        const size_t length = random_text(&counter, text, draw(&counter, 90));
        machine_encode(&json, text, length, SPELLING_IS_TEXT);
        machine_encode(&model, text, length, SPELLING_IS_TEXT);
        machine_encode(&bin, text, length, SPELLING_IS_TEXT);
        assert_int_equal(json.ids.count, model.ids.count);
        assert_int_equal(json.ids.count, bin.ids.count);
        for (size_t i = 0; i < json.ids.count; i++) {
            assert_int_equal(json.ids.ids[i], model.ids.ids[i]);
            assert_int_equal(json.ids.ids[i], bin.ids.ids[i]);
        }
        model.text.length = bin.text.length = 0;
        machine_must(tokenizer_decode(model.t, model.ids.ids, model.ids.count, false, &model.text));
        machine_must(tokenizer_decode(bin.t, bin.ids.ids, bin.ids.count, false, &bin.text));
        assert_int_equal(bin.text.length, model.text.length);
        if (bin.text.length > 0)
            assert_memory_equal(bin.text.data, model.text.data, bin.text.length);
    }
    machine_must(tokenizer_digest(model.t, &of_model));
    machine_must(tokenizer_digest(bin.t, &of_bin));
    assert_true(of_model == of_bin);
    machine_close(&json);
    machine_close(&model);
    machine_close(&bin);
}

static void add_number(text_t *out, uint32_t number)
{
    for (unsigned i = 0; i < 4; i++)
        text_append_n(out, &(char){(char)(number >> (8 * i))}, 1);
}

/* A piece of a tokenizer.bin with a score that is a whole number from -8 to 0, or its bits. */
static void add_bin_piece(text_t *out, uint32_t score_bits, const char *piece, size_t length)
{
    add_number(out, score_bits);
    add_number(out, (uint32_t)length);
    text_append_n(out, piece, length);
}

/* Scores as IEEE-754 has them. */
#define SCORE_0 0u
#define SCORE_MINUS_1 0xBF800000u
#define SCORE_NAN 0x7FC00000u

/* The longest length, the special pieces and the 256 bytes: ids 0 to 258. */
static void bin_begin(text_t *out, uint32_t longest)
{
    add_number(out, longest);
    add_bin_piece(out, SCORE_0, "<unk>", 5);
    add_bin_piece(out, SCORE_0, "\n<s>\n", 5);
    add_bin_piece(out, SCORE_0, "\n</s>\n", 6);
    for (unsigned byte = 0; byte < 256; byte++) {
        char piece[8];
        (void)snprintf(piece, sizeof(piece), "<0x%02X>", byte);
        add_bin_piece(out, SCORE_0, piece, 6);
    }
}

/* By the rule of llama2.c's run.c: a space in front, characters that are no pieces as bytes, which
 * have the ids from 3 on, then whichever neighbours make the piece with the highest score. A longest piece of 123 bytes
 * makes '{' of the first byte, as JSON has it. */
static void an_export_of_llama2c_joins_by_its_scores(void **state)
{
    static const struct {
        const char *text;
        int32_t ids[4];
        size_t count;
    } rows[] = {
        {"ab", {259, 263}, 2},            /* "ab" scores higher than " a" */
        {"aab", {262, 263}, 2},           /* then " a" */
        {"\xC3\xA9", {259, 198, 172}, 3}, /* 3 + 0xC3, 3 + 0xA9 */
        {"b a", {259, 261, 262}, 3},
        {"<s>", {259, 63, 118, 65}, 4}, /* 3 + '<', 3 + 's', 3 + '>' */
    };
    static const int32_t begin[] = {1}, unknown[] = {0};
    scratch_t *s = *state;
    machine_t m;
    text_t file = {0};
    bin_begin(&file, 123);
    add_bin_piece(&file, SCORE_MINUS_1, " ", 1);
    add_bin_piece(&file, SCORE_MINUS_1, "a", 1);
    add_bin_piece(&file, SCORE_MINUS_1, "b", 1);
    add_bin_piece(&file, SCORE_MINUS_1, " a", 2);
    add_bin_piece(&file, SCORE_0, "ab", 2);
    assert_int_equal(file.data[0], '{');
    machine_open(&m, scratch_write(s, "tokenizer.bin", file.data, file.length));
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        check_ids(&m, rows[i].text, SPELLING_IS_TEXT, rows[i].ids, rows[i].count);
        m.text.length = 0;
        machine_must(tokenizer_decode(m.t, m.ids.ids, m.ids.count, false, &m.text));
        assert_string_equal(m.text.data, rows[i].text);
    }
    check_ids(&m, "<s>", SPELLING_IS_TOKEN, begin, 1);
    m.text.length = 0;
    machine_must(tokenizer_decode(m.t, unknown, 1, false, &m.text));
    assert_string_equal(m.text.data, "<unk>");
    machine_close(&m);
    text_free(&file);
}

static void an_export_of_llama2c_is_refused_by_its_piece(void **state)
{
    /* What comes behind 259 pieces, 3628 bytes. */
    static const struct {
        uint32_t score, length;
        const char *piece, *reason;
    } rows[] = {
        {SCORE_0, 7, "abcdefg",
         "tokenizer.bin: piece 259 at byte 3628 has 7 bytes; expected at most 6, which the file "
         "begins "
         "with"},
        {SCORE_NAN, 1, "a", "tokenizer.bin: the score of piece 259 is not finite"},
        {SCORE_0, 0, "", "tokenizer.bin: piece 259 is empty"},
        {SCORE_0, 2, "a\0", "tokenizer.bin: piece 259 is not a text of UTF-8"},
        {SCORE_0, 1, "\xC3", "tokenizer.bin: piece 259 is not a text of UTF-8"},
        {SCORE_0, 6, "<0x41>",
         "tokenizer.bin: the piece '<0x41>' is there twice, with the ids 68 and 259"},
    };
    scratch_t *s = *state;
    tokenizer_t *t = NULL;
    text_t file = {0};
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        file.length = 0;
        bin_begin(&file, 6);
        assert_int_equal(file.length, 3628);
        add_bin_piece(&file, rows[i].score, rows[i].piece, rows[i].length);
        const char *path = scratch_write(s, "tokenizer.bin", file.data, file.length);
        assert_int_equal(tokenizer_load(path, NULL, &t), LH_INVALID);
        assert_string_equal(behind_folder(s, fail_reason()), rows[i].reason);
    }
    file.length = 0;
    bin_begin(&file, 6);
    /* Inside of any piece the file is cut off; between two of them a byte's piece is missing. */
    for (size_t cut = 12; cut < file.length; cut += 5) {
        const char *path = scratch_write(s, "tokenizer.bin", file.data, cut);
        assert_int_equal(tokenizer_load(path, NULL, &t), LH_INVALID);
        if (strstr(fail_reason(), " bytes left, expected ") == NULL &&
            strstr(fail_reason(), "byte_fallback is on, but the piece '<0x") == NULL)
            FAIL_TEST("%zu: %s\n", cut, fail_reason());
    }
    assert_string_equal(behind_folder(s, fail_reason()),
                        "tokenizer.bin: piece 258 at byte 3614 has 13 bytes left, expected 14");
    text_free(&file);
}

static void what_was_encoded_before_does_not_matter(void **state)
{
    machine_t used, fresh;
    uint64_t counter = 0;
    char text[400];
    (void)state;

    machine_open(&used, TOKENIZERS "gpt2-tiny");
    for (int round = 0; round < 30; round++) {
        const size_t length = random_text(&counter, text, 90);
        machine_encode(&used, text, length, SPELLING_AS_REFERENCE);
        machine_open(&fresh, TOKENIZERS "gpt2-tiny");
        machine_encode(&fresh, text, length, SPELLING_AS_REFERENCE);
        assert_int_equal(used.ids.count, fresh.ids.count);
        assert_memory_equal(used.ids.ids, fresh.ids.ids, used.ids.count * sizeof(int32_t));
        machine_close(&fresh);
    }
    machine_close(&used);
}

static void special_ids_are_those_of_the_files(void **state)
{
    static const struct {
        const char *path;
        int32_t size;
        tokenizer_special_t special;
    } rows[] = {
        {TOKENIZERS "gpt2-tiny", 5000, {4999, 4999, 4999, -1, -1}},
        {TOKENIZERS "stories260K", 512, {1, 2, 2, 0, -1}},
        {TOKENIZERS "stories260K/tokenizer.model", 512, {1, 2, 2, 0, -1}},
        {TOKENIZERS "stories260K/tokenizer.bin", 512, {1, 2, 2, 0, -1}},
        {TOKENIZERS "spm-bpe.model", 1000, {1, 2, 2, 0, -1}},
        {TOKENIZERS "mini-llama", 128002, {128000, 128001, 128001, -1, -1}},
    };
    (void)state;

    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        machine_t m;
        machine_open(&m, rows[i].path);
        assert_int_equal(tokenizer_vocab_size(m.t), rows[i].size);
        assert_memory_equal(tokenizer_special(m.t), &rows[i].special, sizeof(rows[i].special));
        machine_close(&m);
    }
}

static void either_file_of_a_pair_may_be_named(void **state)
{
    static const char *const paths[] = {TOKENIZERS "gpt2-tiny/vocab.json",
                                        TOKENIZERS "gpt2-tiny/merges.txt"};
    (void)state;

    for (size_t i = 0; i < 2; i++) {
        machine_t m;
        machine_open(&m, paths[i]);
        assert_int_equal(tokenizer_file_count(m.t), 2);
        assert_string_equal(tokenizer_file(m.t, 0), paths[0]);
        assert_string_equal(tokenizer_file(m.t, 1), paths[1]);
        machine_close(&m);
    }
}

/* A file of one letter is refused by its name: so it was read. */
static void a_folder_stands_for_the_first_of_its_tokenizers(void **state)
{
    static const char *const last_first[] = {"tokenizer.bin", "encoder.json", "vocab.json",
                                             "tokenizer.model", "tokenizer.json"};
    scratch_t *s = *state;
    tokenizer_t *t;

    /* A pair of names of its own is found by its files alone. */
    (void)scratch_text(s, "my-vocab.json", "x");
    (void)scratch_text(s, "my-merges.txt", "x");
    assert_int_equal(tokenizer_load(s->folder, NULL, &t), LH_INVALID);
    assert_non_null(strstr(fail_reason(), " has no tokenizer: "));
    for (size_t i = 0; i < sizeof(last_first) / sizeof(*last_first); i++) {
        char expected[64];
        (void)snprintf(expected, sizeof(expected), "%s is no tokenizer: ", last_first[i]);
        (void)scratch_text(s, last_first[i], "x");
        assert_int_equal(tokenizer_load(s->folder, NULL, &t), LH_INVALID);
        assert_memory_equal(behind_folder(s, fail_reason()), expected, strlen(expected));
    }
}

static void a_spelt_out_special_token_is_text_unless_asked_for(void **state)
{
    static const int32_t token[] = {4999};
    machine_t m;
    (void)state;

    machine_open(&m, TOKENIZERS "gpt2-tiny");
    check_ids(&m, "<|endoftext|>", SPELLING_IS_TOKEN, token, 1);
    machine_encode(&m, "<|endoftext|>", 13, SPELLING_AS_REFERENCE);
    assert_true(m.ids.count > 1);
    machine_encode(&m, "<|endoftext|>", 13, SPELLING_IS_TEXT);
    assert_true(m.ids.count > 1);
    machine_close(&m);
}

static void decoding_skips_special_tokens_only_when_told(void **state)
{
    static const int32_t ids[] = {4999, 0, 4999};
    machine_t m;
    (void)state;

    machine_open(&m, TOKENIZERS "gpt2-tiny");
    assert_int_equal(tokenizer_decode(m.t, ids, 3, true, &m.text), LH_OK);
    assert_string_equal(m.text.data, "!");
    m.text.length = 0;
    assert_int_equal(tokenizer_decode(m.t, ids, 3, false, &m.text), LH_OK);
    assert_string_equal(m.text.data, "<|endoftext|>!<|endoftext|>");
    machine_close(&m);
}

static void an_id_outside_the_vocabulary_is_refused(void **state)
{
    static const int32_t bad[] = {-1, 5000, INT32_MAX};
    machine_t m;
    (void)state;

    machine_open(&m, TOKENIZERS "gpt2-tiny");
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(tokenizer_decode(m.t, &bad[i], 1, false, &m.text), LH_INVALID);
    assert_string_equal(fail_reason(), "token 0 is 2147483647; the tokenizer's ids are 0 to 4999");
    machine_close(&m);
}

#define MODEL(vocab, merges) \
    "{\"model\":{\"type\":\"BPE\",\"vocab\":{" vocab "},\"merges\":[" merges "]}"
#define UNIGRAM(vocab) "{\"model\":{\"type\":\"Unigram\",\"vocab\":[" vocab "]"
#define BEHIND_BYTES(step)                                                                  \
    ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"," \
    "\"add_prefix_space\":false}," step "]}}"
#define AB "\"a\":0,\"b\":1,\"ab\":2"

/* A file that is refused, and in which words. */
static const struct {
    const char *text, *reason;
} refused_files[] = {
    {"{\"model\":{\n\"vocab\": x}}", "tokenizer.json: not JSON, line 2 column 10, 'x': "
                                     "unexpected character, expected a JSON value"},
    {MODEL("\"a\":0,\"a\":1", "") "}", "tokenizer.json: key 'a' stands twice"},
    {MODEL("\"a\":0,\"b\":0", "") "}", "tokenizer.json: the pieces 'a' and 'b' both have the id 0"},
    {MODEL("\"a\":-1", "") "}",
     "tokenizer.json: 'a' has the id -1; ids from 0 to 999 are supported"},
    {MODEL("\"a\":1000", "") "}",
     "tokenizer.json: 'a' has the id 1000; ids from 0 to 999 are supported"},
    {MODEL("\"a\":0.5", "") "}", "tokenizer.json: 'a' has no whole number for an id"},
    {MODEL("", "") "}", "tokenizer.json: the vocabulary is empty"},
    {MODEL(AB, "\"a b\",\"a c\"") "}",
     "tokenizer.json: merge 1 joins 'a' and 'c', but 'c' is not a piece of the vocabulary"},
    {MODEL(AB, "\"b a\"") "}",
     "tokenizer.json: merge 0 joins 'b' and 'a', but 'ba' is not a piece of the vocabulary"},
    {MODEL(AB, "\"ab\"") "}",
     "tokenizer.json: merge 0 is not two pieces with one space between them"},
    {MODEL(AB, "[\"a\",\"b\",\"c\"]") "}",
     "tokenizer.json: merge 0 is not two pieces with one space between them"},
    {MODEL(AB, "") ",\"added_tokens\":[{\"id\":7,\"content\":\"a\"}]}",
     "tokenizer.json: 'a' has the id 7 as an added token and 0 in the vocabulary"},
    {MODEL(AB, "") ",\"added_tokens\":[{\"id\":1,\"content\":\"x\"}]}",
     "tokenizer.json: 'x' and the piece 'b' both have the id 1"},
    {MODEL(AB, "") ",\"added_tokens\":[{\"id\":99999,\"content\":\"x\"}]}",
     "tokenizer.json: 'x' has the id 99999; ids from 0 to 999 are supported"},
    {MODEL(AB, "") ",\"pre_tokenizer\":{\"type\":\"Whistle\"}}",
     "tokenizer.json: a pre_tokenizer of type 'Whistle' is not supported; expected ByteLevel, "
     "Split, "
     "Digits, Punctuation, Metaspace, WhitespaceSplit, Whitespace, BertPreTokenizer, "
     "CharDelimiterSplit, FixedLength, or a Sequence of them"},
    {MODEL(AB, "") ",\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false}}",
     "tokenizer.json: the byte 0x0A has no piece of its own, spelt '\xC4\x8A'"},
    {MODEL(AB, "") ",\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":"
                   "{\"Regex\":\"(a\"}}}",
     "tokenizer.json: the pattern '(a' can't be used: missing closing parenthesis"},
    {"{\"model\":{\"type\":\"Chars\",\"vocab\":[]}}",
     "tokenizer.json: the model is of type 'Chars'; BPE, Unigram and WordPiece are supported"},
    {"{\"model\":{\"type\":3,\"vocab\":{}}}",
     "tokenizer.json: model.type is 3, BPE, Unigram or WordPiece was expected"},
    /* Without a type: what is a vocabulary alone, what a list is, what a word's length is for. */
    {"{\"model\":{\"vocab\":{\"a\":0}}}",
     "tokenizer.json: model.type is missing, and the model is none that is known without it; "
     "BPE, Unigram and WordPiece are supported"},
    {"{\"model\":{\"vocab\":[[\"a\"]]}}",
     "tokenizer.json: the entry 0 of model.vocab is not [piece, score]"},
    {"{\"model\":{\"vocab\":[],\"max_input_chars_per_word\":9}}",
     "tokenizer.json: model.vocab is not an object of pieces and ids"},
    {MODEL(AB, "") ",\"normalizer\":{\"type\":\"Precompiled\"}}",
     "tokenizer.json: Precompiled has no precompiled_charsmap"},
    {MODEL(AB, "") ",\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AA=A\"}}",
     "tokenizer.json: the precompiled_charsmap is not base64"},
    {MODEL(AB, "") ",\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAA=\"}}",
     "tokenizer.json: the charsmap has 2 bytes; it starts with 4"},
    {MODEL(AB, "") ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":["
                   "{\"type\":\"ByteLevel\"},{\"type\":\"NFC\"}]}}",
     "tokenizer.json: the normalizer NFC behind ByteLevel is not supported"},
    {MODEL(AB, "") ",\"normalizer\":{\"type\":\"Sequence\"}}",
     "tokenizer.json: the normalizer's sequence has no list 'normalizers'"},
    {MODEL(AB, "") ",\"normalizer\":{\"type\":\"Prepend\"}}",
     "tokenizer.json: Prepend has no text"},
    {MODEL(AB, "") ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"}}}",
     "tokenizer.json: Replace has no content"},
    {MODEL(AB, "") ",\"normalizer\":{\"type\":\"Replace\",\"content\":\"a\"}}",
     "tokenizer.json: the Replace has no pattern {\"String\" or \"Regex\": \"...\"}"},
    {MODEL(AB, "") ",\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Sideways\"}}",
     "tokenizer.json: Split has the unknown behavior 'Sideways'"},
    {MODEL(AB, "") ",\"pre_tokenizer\":{\"type\":\"Metaspace\"}}",
     "tokenizer.json: Metaspace's replacement is not one character"},
    /* What follows would see characters of the byte alphabet. */
    {MODEL(AB, "") BEHIND_BYTES("{\"type\":\"ByteLevel\"}"), "tokenizer.json has ByteLevel twice"},
    {MODEL(AB, "") BEHIND_BYTES("{\"type\":\"Punctuation\"}"),
     "tokenizer.json: Punctuation after ByteLevel is not supported"},
    {MODEL(AB, "") BEHIND_BYTES("{\"type\":\"WhitespaceSplit\"}"),
     "tokenizer.json: WhitespaceSplit after ByteLevel is not supported"},
    {MODEL(AB, "") BEHIND_BYTES("{\"type\":\"Metaspace\",\"replacement\":\"_\"}"),
     "tokenizer.json: Metaspace after ByteLevel is not supported"},
    {MODEL(AB, "") BEHIND_BYTES(
         "{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":\"a\"}}"),
     "tokenizer.json: Split by 'a' after ByteLevel is not supported"},
    {MODEL(AB, "") ",\"pre_tokenizer\":{\"type\":\"FixedLength\",\"length\":0}}",
     "tokenizer.json: FixedLength.length is 0, a whole number above 0 was expected"},
    {MODEL(AB, "") ",\"pre_tokenizer\":{\"type\":\"CharDelimiterSplit\"}}",
     "tokenizer.json: CharDelimiterSplit.delimiter is nothing, a character was expected"},
    {MODEL(AB, "") ",\"decoder\":{\"type\":\"WordPiece\"}}",
     "tokenizer.json: WordPiece.prefix is nothing, a text was expected"},
    {MODEL(AB, "") ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[]}}",
     "tokenizer.json: the template has no sequence A"},
    {MODEL(AB, "") ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":["
                   "{\"SpecialToken\":{\"id\":\"<s>\"}}]}}",
     "tokenizer.json: the template's '<s>' is not in its special_tokens"},
    {MODEL(AB, "") ",\"post_processor\":{\"type\":\"BertProcessing\",\"sep\":[\"a\",0]}}",
     "tokenizer.json: an id of the post_processor is nothing, an id was expected"},
    {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":[]}}",
     "tokenizer.json: model.vocab is not an object of pieces and ids"},
    {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"WordPiece\",\"vocab\":{"
     "\"a\":0}}}",
     "tokenizer.json: ByteLevel with a model of type 'WordPiece' is not supported; expected "
     "BPE"},
    {UNIGRAM("") "}}", "tokenizer.json: model.vocab is not a list of [piece, score]"},
    {UNIGRAM("[\"a\",0],[\"b\"]") "}}",
     "tokenizer.json: the entry 1 of model.vocab is not [piece, score]"},
    {UNIGRAM("[\"a\",0],[\"a\",1]") "}}",
     "tokenizer.json: the piece 'a' is there twice, with the ids 0 and 1"},
    {UNIGRAM("[\"a\",0]") ",\"unk_id\":1}}",
     "tokenizer.json: model.unk_id is 1, an id of model.vocab was expected"},
    {UNIGRAM("[\"a\",0]") ",\"byte_fallback\":true}}",
     "tokenizer.json: byte_fallback is on, but the piece '<0x00>' is missing"},
    {"{\"model\":{\"dropout\":0.1,\"vocab\":{},\"merges\":[]}}",
     "tokenizer.json: model.dropout is 0.1; only text without dropout is encoded"},
    {"{\"model\":{\"byte_fallback\":true,\"vocab\":{\"a\":0},\"merges\":[]}}",
     "tokenizer.json: byte_fallback is on, but the piece '<0x00>' is missing"},
    {"{\"model\":{\"end_of_word_suffix\":3,\"vocab\":{\"a\":0},\"merges\":[]}}",
     "tokenizer.json: model.end_of_word_suffix is 3, a text was expected"},
    {"{\"model\":{\"end_of_word_suffix\":\"</w>\",\"byte_fallback\":true,\"vocab\":{\"a\":0},"
     "\"merges\":[]}}",
     "tokenizer.json: model.byte_fallback with model.end_of_word_suffix is not supported"},
    {"{\"model\":{\"continuing_subword_prefix\":\"##\",\"vocab\":{" AB "},\"merges\":[\"a b\"]}}",
     "tokenizer.json: merge 0 joins 'a' and 'b', but the second does not begin with '##'"},
    {"{\"model\":{\"continuing_subword_prefix\":\"##\",\"vocab\":{\"a\":0,\"##b\":1},"
     "\"merges\":[\"a ##b\"]}}",
     "tokenizer.json: merge 0 joins 'a' and '##b', but 'ab' is not a piece of the vocabulary"},
    {"{\"model\":{\"unk_token\":\"?\",\"vocab\":{\"a\":0},\"merges\":[]}}",
     "tokenizer.json: model.unk_token '?' is not in the vocabulary"},
};

static void a_bad_tokenizer_json_is_refused_in_a_sentence(void **state)
{
    const tokenizer_limits_t limits = {.vocabulary = 1000};
    scratch_t *s = *state;

    for (size_t i = 0; i < sizeof(refused_files) / sizeof(*refused_files); i++) {
        tokenizer_t *t;
        const char *path = scratch_text(s, "tokenizer.json", refused_files[i].text);
        assert_true(tokenizer_load(path, &limits, &t) != LH_OK);
        assert_string_equal(behind_folder(s, fail_reason()), refused_files[i].reason);
    }
}

/* A sentencepiece model begins with a line feed, a length and a line feed, too. */
static void json_behind_blank_lines_is_json(void **state)
{
    static const char *const files[] = {
        "\n\n\n" MODEL(AB, "\"a b\"") "}",
        "\n \n\t" MODEL(AB, "\"a b\"") "}",
        "\n\r\n\r\n" MODEL(AB, "\"a b\"") "}",
    };
    static const int32_t joined[] = {2, 0};
    scratch_t *s = *state;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        machine_t m;
        machine_open(&m, scratch_text(s, "tokenizer.json", files[i]));
        check_ids(&m, "aba", SPELLING_IS_TEXT, joined, 2);
        machine_close(&m);
    }
}

static void a_long_sequence_and_a_long_pattern_are_refused(void **state)
{
    enum { STEPS = 65, PATTERN = 65537 };
    scratch_t *s = *state;
    tokenizer_t *t;
    text_t steps = {0}, pattern = {0};
    text_append(&steps, MODEL(AB, "") ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");
    for (int i = 0; i < STEPS; i++)
        text_printf(&steps, "%s{\"type\":\"NFC\"}", i == 0 ? "" : ",");
    text_append(&steps, "]}}");
    text_append(&pattern, MODEL(AB, "") ",\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":"
                                        "\"Isolated\",\"pattern\":{\"Regex\":\"");
    for (int i = 0; i < PATTERN; i++)
        text_append(&pattern, "a");
    text_append(&pattern, "\"}}}");
    assert_false(steps.failed || pattern.failed);

    assert_int_equal(tokenizer_load(scratch_text(s, "tokenizer.json", steps.data), NULL, &t),
                     LH_INVALID);
    assert_string_equal(behind_folder(s, fail_reason()),
                        "tokenizer.json: the normalizer has 65 steps; at most 64 are supported");
    assert_int_equal(tokenizer_load(scratch_text(s, "tokenizer.json", pattern.data), NULL, &t),
                     LH_INVALID);
    assert_string_equal(behind_folder(s, fail_reason()),
                        "tokenizer.json: a pattern of 65537 bytes; 1 to 65536 are supported");
    text_free(&pattern);
    text_free(&steps);
}

#define WORD_ENDS                                                                          \
    "\"vocab\":{\"l\":0,\"o\":1,\"w\":2,\"e\":3,\"r\":4,\"w</w>\":5,\"r</w>\":6,\"lo\":7," \
    "\"low</w>\":8,\"er</w>\":9,\"low\":10,\"!</w>\":11,\"<unk>\":12,\"\\u00c3\":13,"      \
    "\"\\u00a9</w>\":14},\"merges\":[\"l o\",\"lo w</w>\",\"e r</w>\",\"lo w\"]"

/* By the rule of Hugging Face's BPE: of a word that the pretokenizer has cut the last character is
 * the piece with the suffix and no other, each but the first the one with the prefix, and a merge
 * makes the left piece and the right one without its prefix. The first file is as CLIP's. */
static void pieces_that_mark_the_places_of_a_word(void **state)
{
    static const char clip[] =
        "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
        "\"pattern\":"
        "{\"Regex\":\"'s|[\\\\p{L}]+|[\\\\p{N}]|[^\\\\s\\\\p{L}\\\\p{N}]+\"},\"behavior\":"
        "\"Removed\","
        "\"invert\":true},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true}"
        "]},"
        "\"decoder\":{\"type\":\"ByteLevel\"},\"added_tokens\":[{\"id\":12,\"content\":\"<unk>\","
        "\"special\":true}],\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\","
        "\"continuing_subword_prefix\":\"\",\"end_of_word_suffix\":\"</w>\"," WORD_ENDS "}}";
    static const char words[] =
        "{\"pre_tokenizer\":{\"type\":\"WhitespaceSplit\"},\"decoder\":{\"type\":\"BPEDecoder\","
        "\"suffix\":\"</w>\"},\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\","
        "\"end_of_word_suffix\":\"</w>\"," WORD_ENDS "}}";
    static const char subwords[] =
        "{\"pre_tokenizer\":{\"type\":\"WhitespaceSplit\"},\"decoder\":{\"type\":\"WordPiece\","
        "\"prefix\":\"##\"},\"model\":{\"type\":\"BPE\",\"continuing_subword_prefix\":\"##\","
        "\"vocab\":{"
        "\"a\":0,\"##b\":1,\"##c\":2,\"ab\":3,\"abc\":4},\"merges\":[\"a ##b\",\"ab ##c\"]}}";
    static const char both[] =
        "{\"model\":{\"type\":\"BPE\",\"continuing_subword_prefix\":\"##\","
        "\"end_of_word_suffix\":\"</w>\",\"ignore_merges\":false,\"vocab\":{\"a\":0,\"##b\":1,"
        "\"##b</w>\":2,\"a</w>\":3,\"ab</w>\":4,\"\\u00e9</w>\":5,\"##\\u00e9\":6},"
        "\"merges\":[\"a ##b</w>\"]}}";
    static const struct {
        const char *file, *text;
        int32_t ids[6];
        size_t count;
        const char *back;
    } rows[] = {
        {clip, "low lower!", {8, 10, 9, 11}, 4, "low lower !"},
        {clip, "lo  low", {0, 12, 8}, 3, "l<unk>low"}, /* no piece "o</w>" */
        {clip, "\xC3\xA9 low", {13, 14, 8}, 3, "\xC3\xA9 low"},
        {words, "low lower", {8, 10, 9}, 3, "low lower"},
        {words, "lower low", {10, 9, 8}, 3, "lower low"},
        {subwords, "ab abc", {3, 4}, 2, "ab abc"},
        {subwords, "acb ca", {0, 2, 1}, 3, "acb"}, /* no "c" and no "##a" */
        {both, "ab", {4}, 1, "ab</w>"},
        {both, "a", {3}, 1, "a</w>"},
        {both, "abb", {0, 1, 2}, 3, "a ##b ##b</w>"},
        {both, "\xC3\xA9", {5}, 1, "\xC3\xA9</w>"},
        {both,
         "a\xC3\xA9"
         "b",
         {0, 6, 2},
         3,
         "a ##\xC3\xA9 ##b</w>"},
    };
    scratch_t *s = *state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        machine_t m;
        machine_open(&m, scratch_text(s, "tokenizer.json", rows[i].file));
        check_ids(&m, rows[i].text, SPELLING_AS_REFERENCE, rows[i].ids, rows[i].count);
        machine_must(tokenizer_decode(m.t, m.ids.ids, m.ids.count, false, &m.text));
        assert_string_equal(m.text.data, rows[i].back);
        machine_close(&m);
    }
}

/* A word is one whatever its length: no short cut and no cache sees another end. */
/* The second file has what lets long words be cut where nothing marks their ends. */
static void the_end_of_a_long_word_is_its_only_one(void **state)
{
    static const char *const files[] = {
        "{\"model\":{\"type\":\"BPE\",\"end_of_word_suffix\":\"$\","
        "\"vocab\":{\"a\":0,\"a$\":1,\"\\u00e9\":2},\"merges\":[]}}",
        "{\"model\":{\"type\":\"BPE\",\"end_of_word_suffix\":\"$\",\"unk_token\":\"?\","
        "\"vocab\":{\"a\":0,\"a$\":1,\"?\":2,\"\\u2581\":3},\"merges\":[]}}"};
    scratch_t *s = *state;
    char text[3000];
    memset(text, 'a', sizeof(text));
    for (size_t f = 0; f < sizeof(files) / sizeof(files[0]); f++) {
        machine_t m;
        machine_open(&m, scratch_text(s, "tokenizer.json", files[f]));
        for (size_t length = 1; length <= sizeof(text); length += 13) {
            machine_encode(&m, text, length, SPELLING_IS_TEXT);
            assert_int_equal(m.ids.count, length);
            for (size_t i = 0; i < length; i++)
                assert_int_equal(m.ids.ids[i], i + 1 == length);
        }
        machine_close(&m);
    }
}

static void check_frame(const char *path, const char *before, const char *after)
{
    machine_t m;
    text_t made = {0};
    machine_open(&m, path);
    const tokenizer_frame_t *f = tokenizer_frame(m.t);
    for (size_t i = 0; i < f->before_count; i++)
        text_printf(&made, "%d ", f->before[i]);
    text_append(&made, "|");
    for (size_t i = 0; i < f->after_count; i++)
        text_printf(&made, " %d", f->after[i]);
    text_t expected = {0};
    text_printf(&expected, "%s|%s", before, after);
    assert_string_equal(made.data, expected.data);
    text_free(&expected);
    text_free(&made);
    machine_close(&m);
}

/* The ids are those that Hugging Face's tokenizers add with add_special_tokens. */
static void the_post_processor_says_what_stands_around_a_text(void **state)
{
    static const char processors[] = MODEL(
        AB, "") ",\"post_processor\":{\"type\":\"Sequence\",\"processors\":["
                "{\"type\":\"ByteLevel\",\"trim_offsets\":true},"
                "{\"type\":\"RobertaProcessing\",\"sep\":[\"b\",1],\"cls\":[\"a\",0],"
                "\"trim_offsets\":true,\"add_prefix_space\":true},"
                "{\"type\":\"TemplateProcessing\",\"single\":["
                "{\"SpecialToken\":{\"id\":\"x\",\"type_id\":0}},"
                "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[],"
                "\"special_tokens\":{\"x\":{\"id\":\"x\",\"ids\":[2,1],\"tokens\":[\"ab\",\"b\"]"
                "}}}]}}";
    scratch_t *s = *state;

    check_frame(TOKENIZERS "wordpiece", "2 ", " 3");
    check_frame(TOKENIZERS "unigram", "1 ", " 2");
    check_frame(TOKENIZERS "stories260K", "1 ", "");
    check_frame(TOKENIZERS "gpt2-tiny", "", "");
    check_frame(scratch_text(s, "tokenizer.json", processors), "2 1 0 ", " 1");
}

/* As Transformers makes a template of the two flags; a post_processor of the file's own counts
 * before them, and what the tokenizer lacks is not added. */
static void a_config_says_what_stands_around_a_text_without_a_post_processor(void **state)
{
    static const char offsets[] = ",\"post_processor\":{\"type\":\"ByteLevel\"}}", nothing[] = "}",
                      nil[] = ",\"post_processor\":null}";
    static const struct {
        const char *end, *config, *before, *after;
    } rows[] = {
        {nothing, "{\"add_bos_token\":true,\"bos_token\":\"a\",\"eos_token\":\"b\"}", "0 ", ""},
        {nil, "{\"add_eos_token\":true,\"bos_token\":\"a\",\"eos_token\":{\"content\":\"b\"}}", "",
         " 1"},
        {nothing,
         "{\"add_bos_token\":true,\"add_eos_token\":true,\"bos_token\":\"a\",\"eos_token\":\"ab\"}",
         "0 ", " 2"},
        {nothing, "{\"add_bos_token\":false,\"bos_token\":\"a\"}", "", ""},
        {nothing, "{\"bos_token\":\"a\",\"eos_token\":\"b\"}", "", ""},
        {nothing, "{\"add_bos_token\":true,\"bos_token\":null}", "", ""},
        {nothing, "{\"add_bos_token\":true,\"bos_token\":\"x\"}", "", ""},
        {offsets, "{\"add_bos_token\":true,\"bos_token\":\"a\"}", "", ""},
    };
    scratch_t *s = *state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        text_t file = {0};
        text_printf(&file, "%s%s", MODEL(AB, "\"a b\""), rows[i].end);
        (void)scratch_text(s, "tokenizer_config.json", rows[i].config);
        check_frame(scratch_text(s, "tokenizer.json", file.data), rows[i].before, rows[i].after);
        text_free(&file);
    }
}

/* Cutting at spaces is only a short cut: it must not be taken where a piece goes on behind one. */
static void a_piece_with_a_space_mark_inside_is_found(void **state)
{
    static const char text[] =
        "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" "
        "\"},\"content\":\"\\u2581\"},"
        "\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"\\u2581\":2,\"\\u2581b\":3,\"a\\u2581b\":4},"
        "\"merges\":[\"\\u2581 b\",\"a \\u2581b\"]}}";
    static const int32_t ids[] = {4, 2, 0};
    scratch_t *s = *state;
    machine_t m;

    machine_open(&m, scratch_text(s, "tokenizer.json", text));
    check_ids(&m, "a b a", SPELLING_AS_REFERENCE, ids, 3);
    machine_close(&m);
}

/* The ids are those of Hugging Face's tokenizers. */
static void a_token_that_takes_the_spaces_behind_it_is_encoded(void **state)
{
    static const char text[] =
        "{\"added_tokens\":[{\"id\":3,\"content\":\"<s>\",\"rstrip\":true,\"special\":true}],"
        "\"model\":{\"vocab\":{\"a\":0,\"b\":1,\" \":2},\"merges\":[]}}";
    static const int32_t first[] = {3, 0, 2, 1}, second[] = {0, 2, 3, 3, 1};
    scratch_t *s = *state;
    machine_t m;

    machine_open(&m, scratch_text(s, "tokenizer.json", text));
    check_ids(&m, "<s>  a b", SPELLING_IS_TOKEN, first, 4);
    check_ids(&m, "a <s> <s>  b", SPELLING_IS_TOKEN, second, 5);
    machine_close(&m);
}

/* The ids are those of Hugging Face's tokenizers: a mark goes only before what the text began with. */
static void a_start_that_a_pattern_takes_away_gets_no_mark(void **state)
{
    static const char text[] =
        "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"^ +\"},\"content\":\"\"},"
        "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\","
        "\"prepend_scheme\":\"first\",\"split\":true},"
        "\"model\":{\"vocab\":{\"a\":0,\"\\u2581\":1,\"\\u2581a\":2},\"merges\":[\"\\u2581 a\"]}}";
    static const int32_t marked[] = {2}, plain[] = {0};
    scratch_t *s = *state;
    machine_t m;

    machine_open(&m, scratch_text(s, "tokenizer.json", text));
    check_ids(&m, "a", SPELLING_AS_REFERENCE, marked, 1);
    check_ids(&m, "  a", SPELLING_AS_REFERENCE, plain, 1);
    machine_close(&m);
}

static void a_file_above_the_limit_is_refused(void **state)
{
    const tokenizer_limits_t limits = {.file_bytes = 1000};
    tokenizer_t *t;
    (void)state;

    assert_true(tokenizer_load(TOKENIZERS "stories260K/tokenizer.model", &limits, &t) != LH_OK);
}

static void a_line_of_merges_is_named_by_its_number(void **state)
{
    static const char *const lines[][2] = {
        {"#version: 0.2\n! !\n",
         "merges.txt:2: joins '!' and '!', but '!!' is not a piece of the vocabulary"},
        {"#version: 0.2\n\na b c\n",
         "merges.txt:3: 'a b c' is not two pieces with one space between them"},
    };
    scratch_t *s = *state;
    text_t vocabulary = {0};
    text_append(&vocabulary, "{");
    for (unsigned byte = 0; byte < 256; byte++)
        text_printf(&vocabulary, "%s\"\\u%04x\":%u", byte == 0 ? "" : ",",
                    piece_character_of_byte((uint8_t)byte), byte);
    text_append(&vocabulary, "}");
    (void)scratch_text(s, "vocab.json", vocabulary.data);
    text_free(&vocabulary);

    for (size_t i = 0; i < 2; i++) {
        tokenizer_t *t;
        (void)scratch_text(s, "merges.txt", lines[i][0]);
        assert_int_equal(tokenizer_load(scratch_path(s, "vocab.json"), NULL, &t), LH_INVALID);
        assert_string_equal(behind_folder(s, fail_reason()), lines[i][1]);
    }
}

static void a_rank_file_is_refused_by_its_line(void **state)
{
    static const char *const files[][2] = {
        {"IQ== 0\nIg== x\n",
         "ranks:2: 'Ig== x' found, base64 text, a space and a rank are expected"},
        {"IQ== 0\n*Q== 1\n",
         "ranks:2: '*Q== 1' found, base64 text, a space and a rank are expected"},
        {"IQ== 0\nIQ== 1\n", "ranks: the piece '!' is there twice, with the ids 0 and 1"},
        {"IQ== 0\nIg== 1\n",
         "ranks: the byte 0x00 has no rank; each of the 256 is expected to have one"},
        {"IQ== 99999999999\n", "ranks:1: the rank is 99999999999; below 4194304 is supported"},
    };
    scratch_t *s = *state;

    for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
        tokenizer_t *t;
        assert_int_equal(tokenizer_load(scratch_text(s, "ranks", files[i][0]), NULL, &t),
                         LH_INVALID);
        assert_string_equal(behind_folder(s, fail_reason()), files[i][1]);
    }
}

/* Trainers have made four kinds; a later one may have more. */
static void a_sentencepiece_of_another_kind_is_refused(void **state)
{
    static const struct {
        char kind;
        const char *reason;
    } rows[] = {
        {3, "kind.model: the sentencepiece model is of kind 'word'; unigram and BPE are supported"},
        {4, "kind.model: the sentencepiece model is of kind 'char'; unigram and BPE are supported"},
        {9,
         "kind.model: the sentencepiece model is of kind 'unknown'; unigram and BPE are supported"},
    };
    scratch_t *s = *state;
    size_t length, at = 0;
    char *bytes = scratch_read(TOKENIZERS "stories260K/tokenizer.model", &length);
    /* Behind the pieces: trainer_spec of 22 bytes, which begins with model_type. */
    for (size_t i = 0; i + 4 < length; i++)
        if (memcmp(bytes + i, "\x12\x16\x18\x02", 4) == 0) at = i + 3;
    assert_true(at > 0);
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        tokenizer_t *t;
        bytes[at] = rows[i].kind;
        const char *path = scratch_write(s, "kind.model", bytes, length);
        assert_int_equal(tokenizer_load(path, NULL, &t), LH_UNSUPPORTED);
        assert_string_equal(behind_folder(s, fail_reason()), rows[i].reason);
    }
    mem_free(bytes);
}

/* Pieces are 8 bytes and more, so every cut but those between fields of the model is inside one. */
static void a_model_cut_off_anywhere_is_refused_or_lacks_pieces(void **state)
{
    scratch_t *s = *state;
    size_t length, refused = 0, tried = 0;
    char *bytes = scratch_read(TOKENIZERS "stories260K/tokenizer.model", &length);

    for (size_t cut = 0; cut < length; cut += 37) {
        tokenizer_t *t = NULL;
        tried++;
        if (tokenizer_load(scratch_write(s, "cut.model", bytes, cut), NULL, &t) != LH_OK) refused++;
        tokenizer_free(t);
    }
    assert_int_equal(refused, tried);
    assert_int_equal(
        tokenizer_load(scratch_write(s, "cut.model", bytes, 100), NULL, &(tokenizer_t *){0}),
        LH_INVALID);
    assert_non_null(strstr(fail_reason(), "the protobuf is cut off at byte 100"));
    mem_free(bytes);
}

/* Whatever the bytes, loading ends with a tokenizer that works or with a sentence. */
static void changed_bytes_are_loaded_or_refused(void **state)
{
    static const char *const files[] = {
        TOKENIZERS "stories260K/tokenizer.model", TOKENIZERS "stories260K/tokenizer.json",
        TOKENIZERS "mini-llama/tokenizer.json",   TOKENIZERS "spm-unigram-bytes.model",
        TOKENIZERS "unigram/tokenizer.json",      TOKENIZERS "wordpiece/tokenizer.json"};
    scratch_t *s = *state;
    uint64_t counter = 0;

    for (int round = 0; round < 600; round++) {
        size_t length;
        char *bytes = scratch_read(files[round % 6], &length);
        for (int k = 0; k < 3; k++)
            bytes[draw(&counter, length)] = (char)draw(&counter, 256);
        tokenizer_t *t = NULL;
        tokenizer_scratch_t *scratch = NULL;
        token_ids_t ids = {0};
        fail_clear();
        if (tokenizer_load(scratch_write(s, "changed", bytes, length), NULL, &t) == LH_OK) {
            assert_int_equal(tokenizer_scratch_new(t, &scratch), LH_OK);
            assert_int_equal(
                tokenizer_encode(t, scratch, "a text, \xC3\xA9\xFF", 11, SPELLING_IS_TOKEN, &ids),
                LH_OK);
        } else {
            assert_true(strlen(fail_reason()) > 0);
        }
        token_ids_free(&ids);
        tokenizer_scratch_free(scratch);
        tokenizer_free(t);
        mem_free(bytes);
    }
}

static void any_allocation_may_fail(void **state)
{
    static const char *const paths[] = {TOKENIZERS "mini-llama",
                                        TOKENIZERS "stories260K/tokenizer.model",
                                        TOKENIZERS "stories260K/tokenizer.bin",
                                        TOKENIZERS "spm-unigram-bytes.model",
                                        TOKENIZERS "unigram",
                                        TOKENIZERS "wordpiece"};
    (void)state;

    for (size_t i = 0; i < sizeof(paths) / sizeof(*paths); i++) {
        lh_status_t status = LH_NO_MEMORY;
        for (uint64_t n = 1; status != LH_OK; n += n < 300 ? 1 : 31) {
            tokenizer_t *t = NULL;
            tokenizer_scratch_t *scratch = NULL;
            token_ids_t ids = {0};
            text_t text = {0};
            mem_fail_at(n, false);
            status = tokenizer_load(paths[i], NULL, &t);
            if (status == LH_OK) status = tokenizer_scratch_new(t, &scratch);
            if (status == LH_OK)
                status = tokenizer_encode(t, scratch, "one two", 7, SPELLING_IS_TEXT, &ids);
            if (status == LH_OK) status = tokenizer_decode(t, ids.ids, ids.count, false, &text);
            mem_fail_at(0, false);
            text_free(&text);
            token_ids_free(&ids);
            tokenizer_scratch_free(scratch);
            tokenizer_free(t);
            assert_true(status == LH_OK || status == LH_NO_MEMORY);
        }
    }
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, scratch_setup, scratch_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(byte_level_pieces_give_back_any_bytes),
        cmocka_unit_test(model_json_and_export_of_one_vocabulary_agree),
        IN_FOLDER(an_export_of_llama2c_joins_by_its_scores),
        IN_FOLDER(an_export_of_llama2c_is_refused_by_its_piece),
        cmocka_unit_test(what_was_encoded_before_does_not_matter),
        cmocka_unit_test(special_ids_are_those_of_the_files),
        cmocka_unit_test(either_file_of_a_pair_may_be_named),
        IN_FOLDER(a_folder_stands_for_the_first_of_its_tokenizers),
        cmocka_unit_test(a_spelt_out_special_token_is_text_unless_asked_for),
        cmocka_unit_test(decoding_skips_special_tokens_only_when_told),
        cmocka_unit_test(an_id_outside_the_vocabulary_is_refused),
        IN_FOLDER(the_post_processor_says_what_stands_around_a_text),
        IN_FOLDER(a_config_says_what_stands_around_a_text_without_a_post_processor),
        IN_FOLDER(a_bad_tokenizer_json_is_refused_in_a_sentence),
        IN_FOLDER(json_behind_blank_lines_is_json),
        IN_FOLDER(a_long_sequence_and_a_long_pattern_are_refused),
        IN_FOLDER(pieces_that_mark_the_places_of_a_word),
        IN_FOLDER(the_end_of_a_long_word_is_its_only_one),
        IN_FOLDER(a_piece_with_a_space_mark_inside_is_found),
        IN_FOLDER(a_token_that_takes_the_spaces_behind_it_is_encoded),
        IN_FOLDER(a_start_that_a_pattern_takes_away_gets_no_mark),
        cmocka_unit_test(a_file_above_the_limit_is_refused),
        IN_FOLDER(a_line_of_merges_is_named_by_its_number),
        IN_FOLDER(a_rank_file_is_refused_by_its_line),
        IN_FOLDER(a_sentencepiece_of_another_kind_is_refused),
        IN_FOLDER(a_model_cut_off_anywhere_is_refused_or_lacks_pieces),
        IN_FOLDER(changed_bytes_are_loaded_or_refused),
        cmocka_unit_test(any_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
