/* op_slots.c - parses the slot text of an op: inputs, "->", outputs; "?" optional, "+" adds. */
#include <graph/op_slots.h>

static bool is_name(const char *text, size_t length)
{
    if (length == 0 || length >= sizeof(((op_t *)0)->slot_name[0])) return false;
    if (text[0] < 'a' || text[0] > 'z') return false;
    for (size_t i = 0; i < length; i++) {
        const char c = text[i];
        if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_')) return false;
    }
    return true;
}

/* Slot of that name among [first, end); end if there is none. */
static uint32_t find(const op_t *op, uint32_t first, uint32_t end, const char *name)
{
    for (uint32_t s = first; s < end; s++)
        if (strcmp(op->slot_name[s], name) == 0) return s;
    return end;
}

static lh_status_t add_slot(op_t *op, const char *word, size_t length, bool output)
{
    const int shown = (int)length;
    const uint32_t slot = op->in_count + op->out_count;
    if (slot == OP_SLOTS)
        return fail(LH_INVALID, "op %s has more than %d slots", op->row.name, (int)OP_SLOTS);

    while (length > 0 && (word[length - 1] == '?' || word[length - 1] == '+')) {
        if (word[length - 1] == '?') op->optional[slot] = true;
        if (word[length - 1] == '+') op->adds[slot] = true;
        length--;
    }
    if (!is_name(word, length))
        return fail(LH_INVALID, "op %s: slot '%.*s' is not a lower-case name of at most 23 letters",
                    op->row.name, shown, word);
    if (op->adds[slot] && !output)
        return fail(LH_INVALID, "op %s: input '%.*s' can't be added to", op->row.name, shown, word);

    char name[sizeof(op->slot_name[0])] = {0};
    memcpy(name, word, length);
    const uint32_t first = output ? op->in_count : 0;
    if (find(op, first, slot, name) != slot)
        return fail(LH_INVALID, "op %s has two slots '%s'", op->row.name, name);
    if (output) {
        const uint32_t input = find(op, 0, op->in_count, name);
        if (input != op->in_count) op->alias[slot] = input + 1;
    }
    memcpy(op->slot_name[slot], name, sizeof(name));
    if (output)
        op->out_count++;
    else
        op->in_count++;
    return LH_OK;
}

lh_status_t op_slots_parse(op_t *op)
{
    const char *at = op->row.slots;
    bool output = false;
    while (*(at += strspn(at, " ")) != '\0') {
        const size_t length = strcspn(at, " ");
        if (length == 2 && memcmp(at, "->", 2) == 0) {
            if (output) return fail(LH_INVALID, "op %s has two '->' in its slots", op->row.name);
            output = true;
        } else {
            const lh_status_t status = add_slot(op, at, length, output);
            if (status != LH_OK) return status;
        }
        at += length;
    }
    if (!output || op->in_count + op->out_count == 0)
        return fail(LH_INVALID, "op %s has slots '%s', expected 'inputs -> outputs'", op->row.name,
                    op->row.slots);
    return LH_OK;
}
