/* signature.c - reads "TYPE(TYPE name, ...)". The text comes from a plugin: nothing in it is
 * trusted. */
#include <plugin/signature.h>

#include <ctype.h>
#include <string.h>

static const char *const type_texts[] = {
    [CALL_STATUS] = "status", [CALL_I64] = "i64", [CALL_U64] = "u64",
    [CALL_F64] = "f64",       [CALL_STR] = "str", [CALL_TENSOR] = "tensor",
};

const char *signature_type_text(uint32_t type)
{
    return type >= CALL_STATUS && type <= CALL_TENSOR ? type_texts[type] : "nothing";
}

static size_t word_length(const char *text)
{
    size_t length = 0;
    while (isalnum((unsigned char)text[length]) || text[length] == '_')
        length++;
    return length;
}

/* Moves *text behind the type; 0: none stands there. */
static uint32_t read_type(const char **text)
{
    const size_t length = word_length(*text);
    for (uint32_t type = CALL_STATUS; type <= CALL_TENSOR; type++) {
        if (strlen(type_texts[type]) != length || memcmp(type_texts[type], *text, length) != 0)
            continue;
        *text += length;
        return type;
    }
    return 0;
}

static const char *read_param(const char **text, signature_t *s)
{
    const uint32_t type = read_type(text);
    if (type == 0) return "a parameter's type is none of i64, u64, f64, str, tensor";
    if (type == CALL_STATUS) return "a parameter can't be a status";
    if (**text != ' ') return "a parameter lacks its name";
    while (**text == ' ')
        (*text)++;
    const size_t length = word_length(*text);
    if (length == 0 || isdigit((unsigned char)**text)) return "a parameter lacks its name";
    if (length >= sizeof(s->params[0].name)) return "a parameter's name has more than 31 letters";
    if (s->count == CALL_PARAMS) return "more than 16 parameters";

    memcpy(s->params[s->count].name, *text, length);
    s->params[s->count].name[length] = '\0';
    s->params[s->count].type = type;
    for (uint32_t i = 0; i < s->count; i++)
        if (strcmp(s->params[i].name, s->params[s->count].name) == 0)
            return "two parameters have one name";
    s->count++;
    *text += length;
    return NULL;
}

const char *signature_parse(const char *text, signature_t *out)
{
    signature_t s = {0};
    s.result = read_type(&text);
    if (s.result == 0) return "the result's type is none of status, i64, u64, f64, str, tensor";
    if (*text++ != '(') return "no '(' follows the result's type";
    if (*text == ')') {
        text++;
    } else {
        for (char end = ','; end == ',';) {
            const char *fault = read_param(&text, &s);
            if (fault != NULL) return fault;
            end = *text;
            if (end != ',' && end != ')') return "neither ',' nor ')' follows a parameter";
            text++;
            while (*text == ' ' && end == ',')
                text++;
        }
    }
    if (*text != '\0') return "text follows ')'";
    if (out != NULL) *out = s;
    return NULL;
}
