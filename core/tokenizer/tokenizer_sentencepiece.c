/* tokenizer_sentencepiece.c - reads a sentencepiece model, BPE or unigram: pieces with scores, and
 * the rules for spaces; and what llama2.c exports of one.
 *
 * A model is a protobuf, of which only the few fields that matter are read, by hand: the format is
 * stable and small, and a library would trust more of a stranger's file. A model has no list of
 * merges; sentencepiece joins whichever neighbours make the piece with the highest score. So all
 * ways to cut each piece in two become merges, with a rank by the score of the piece that they
 * make, which gives the same joins in the same order. A unigram
 * model's scores are used as they are. */

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include <base/memory.h>
#include <base/status.h>
#include <tokenizer/tokenizer_sentencepiece.h>

/* Protobuf: varints, fixed values and length-delimited fields, each checked against the end. */
typedef enum wire { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 } wire_t;

/* A message and how far it has been read. All is zero but for path, bytes and length, and base of
 * one inside of another. Bytes are borrowed from the file. */
typedef struct message { /* zero but for these three */
    const char *path;    /* for sentences */
    const char *bytes;
    size_t length;
    size_t base; /* where bytes stands in the file */
    size_t at;
} message_t;

/* The field that message_next has read; of its three values the one of its type is set. */
typedef struct field {
    uint32_t number;
    wire_t wire;
    uint64_t value;    /* of a varint or a fixed one  */
    message_t message; /* of bytes: what is inside    */
} field_t;

static lh_status_t protobuf_truncated(const message_t *m)
{
    return fail(LH_INVALID, "%s: the protobuf is cut off at byte %zu", m->path,
                m->base + m->length);
}

/* Seven bits a byte, the lowest first. Ten bytes hold 64 bits, which negative numbers of 32 bits
 * are written with as well. */
static lh_status_t read_varint(message_t *m, uint64_t *out)
{
    uint64_t value = 0;

    for (unsigned shift = 0; shift < 70; shift += 7) {
        if (m->at == m->length) return protobuf_truncated(m);
        const uint8_t byte = (uint8_t)m->bytes[m->at++];
        if (shift < 64) value |= (uint64_t)(byte & 0x7F) << shift;
        if ((byte & 0x80) == 0) {
            *out = value;
            return LH_OK;
        }
    }
    return fail(LH_INVALID, "%s: a number of more than ten bytes at byte %zu", m->path,
                m->base + m->at);
}

/* Little-endian, of 4 or 8 bytes. */
static lh_status_t read_fixed(message_t *m, size_t size, uint64_t *out)
{
    if (m->length - m->at < size) return protobuf_truncated(m);
    uint64_t value = 0;
    for (size_t i = 0; i < size; i++)
        value |= (uint64_t)(uint8_t)m->bytes[m->at + i] << (8 * i);
    m->at += size;
    *out = value;
    return LH_OK;
}

/* A field that has its length in front: a text or a message inside of this one. */
static lh_status_t read_delimited(message_t *m, message_t *out)
{
    uint64_t length;
    const lh_status_t status = read_varint(m, &length);
    if (status != LH_OK) return status;
    if (length > m->length - m->at)
        return fail(LH_INVALID,
                    "%s: the protobuf is cut off at byte %zu: a field of %llu bytes starts "
                    "at byte %zu",
                    m->path, m->base + m->length, (unsigned long long)length, m->base + m->at);
    *out = (message_t){.path = m->path,
                       .bytes = m->bytes + m->at,
                       .length = (size_t)length,
                       .base = m->base + m->at};
    m->at += (size_t)length;
    return LH_OK;
}

/* Reads the next field, whichever it is; the caller passes over those that it doesn't know. *more
 * is false at the end of the message. */
static lh_status_t message_next(message_t *m, field_t *out, bool *more)
{
    lh_assert(m->at <= m->length);
    *more = m->at < m->length;
    if (!*more) return LH_OK;

    const size_t start = m->base + m->at;
    uint64_t tag = 0;
    const lh_status_t status = read_varint(m, &tag);
    if (status != LH_OK) return status;
    *out = (field_t){.number = (uint32_t)(tag >> 3), .wire = (wire_t)(tag & 7)};
    if (tag >> 3 == 0 || tag > UINT32_MAX)
        return fail(LH_INVALID, "%s: no protobuf field starts at byte %zu", m->path, start);
    switch (tag & 7) {
    case WIRE_VARINT: return read_varint(m, &out->value);
    case WIRE_FIXED64: return read_fixed(m, 8, &out->value);
    case WIRE_BYTES: return read_delimited(m, &out->message);
    case WIRE_FIXED32: return read_fixed(m, 4, &out->value);
    default:
        return fail(LH_INVALID, "%s: the protobuf field at byte %zu has the unknown type %u",
                    m->path, start, (unsigned)(tag & 7));
    }
}

/* Refuses a field of another type than the format has. */
static lh_status_t field_expect(const message_t *m, const field_t *f, wire_t wire, const char *name)
{
    if (f->wire == wire) return LH_OK;
    return fail(LH_INVALID, "%s: the field %s before byte %zu has protobuf type %d, expected %d",
                m->path, name, m->base + m->at, (int)f->wire, (int)wire);
}

/* A float comes as a fixed value of 32 bits. */
static float field_float(const field_t *f)
{
    const uint32_t bits = (uint32_t)f->value;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static const char space_mark[] = "\xE2\x96\x81"; /* U+2581 */

enum { KIND_UNIGRAM = 1, KIND_BPE = 2 }; /* TrainerSpec.model_type */

/* What is gathered before the tokenizer can be put together: the parts of the file may come in any
 * order. Numbers in the readers below are the field numbers of sentencepiece_model.proto. */
typedef struct model_file {
    const char *path;
    float *scores; /* by id */
    size_t score_room, type_room;
    uint64_t model_type;
    int64_t unk, bos, eos, pad; /* trainer_spec; -1: none */
    bool byte_fallback;
    message_t charsmap;
    char *surface; /* owned; of an unknown token */
    bool add_dummy_prefix, remove_extra, escape, suffix;
    bool has_trainer, has_normalizer;
} model_file_t;

/* The next piece of the file, whose id is its place there. */
static lh_status_t add_scored_piece(tokenizer_t *t, model_file_t *f, piece_t piece, float score,
                                    uint64_t type)
{
    const size_t id = t->pieces.count;
    if (piece.length == 0) return fail(LH_INVALID, "%s: piece %zu is empty", f->path, id);
    if (memchr(piece.bytes, '\0', piece.length) != NULL ||
        !text_utf8_valid(piece.bytes, piece.length))
        return fail(LH_INVALID, "%s: piece %zu is not a text of UTF-8", f->path, id);
    if (!isfinite(score))
        return fail(LH_INVALID, "%s: the score of piece %zu is not finite", f->path, id);
    if (type < PIECE_NORMAL || type > PIECE_BYTE)
        return fail(LH_INVALID, "%s: piece %zu has the unknown type %llu", f->path, id,
                    (unsigned long long)type);
    if (id >= t->limits.vocabulary)
        return fail(LH_INVALID, "%s has more than %u pieces", f->path, t->limits.vocabulary);

    float *scores = mem_grow(f->scores, &f->score_room, id + 1, sizeof(*scores));
    if (scores == NULL) return LH_NO_MEMORY;
    f->scores = scores;
    uint8_t *types = mem_grow(t->types, &f->type_room, id + 1, 1);
    if (types == NULL) return LH_NO_MEMORY;
    t->types = types;
    scores[id] = score;
    types[id] = (uint8_t)type;
    return tokenizer_add_piece(t, f->path, (uint32_t)id, piece.bytes, piece.length);
}

/* ModelProto.SentencePiece. */
static lh_status_t read_piece(tokenizer_t *t, model_file_t *f, message_t m)
{
    message_t piece = {0};
    uint64_t type = PIECE_NORMAL;
    float score = 0;
    field_t field;
    bool more;

    for (;;) {
        lh_status_t status = message_next(&m, &field, &more);
        if (status != LH_OK) return status;
        if (!more) break;
        if (field.number == 1) {
            status = field_expect(&m, &field, WIRE_BYTES, "piece");
            piece = field.message;
        } else if (field.number == 2) {
            status = field_expect(&m, &field, WIRE_FIXED32, "score");
            score = field_float(&field);
        } else if (field.number == 3) {
            status = field_expect(&m, &field, WIRE_VARINT, "type");
            type = field.value;
        }
        if (status != LH_OK) return status;
    }
    return add_scored_piece(t, f, (piece_t){piece.bytes, piece.length}, score, type);
}

/* TrainerSpec: the kind of model and its special ids. Of a field that comes twice the last one
 * counts, as protobuf has it. */
static lh_status_t read_trainer(model_file_t *f, message_t m)
{
    field_t field;
    bool more;

    for (;;) {
        lh_status_t status = message_next(&m, &field, &more);
        if (status != LH_OK) return status;
        if (!more) return LH_OK;
        const int32_t number = (int32_t)field.value; /* ids are int32: -1 takes ten bytes */
        if (field.number == 44) {
            status = field_expect(&m, &field, WIRE_BYTES, "unk_surface");
            if (status != LH_OK) return status;
            mem_free(f->surface);
            f->surface = mem_text_n(field.message.bytes, field.message.length);
            if (f->surface == NULL) return LH_NO_MEMORY;
        }
        if (field.wire != WIRE_VARINT) continue;
        if (field.number == 3) f->model_type = field.value;
        if (field.number == 24) f->suffix = field.value != 0;
        if (field.number == 35) f->byte_fallback = field.value != 0;
        if (field.number == 40) f->unk = number;
        if (field.number == 41) f->bos = number;
        if (field.number == 42) f->eos = number;
        if (field.number == 43) f->pad = number;
    }
}

/* NormalizerSpec. */
static lh_status_t read_spaces(model_file_t *f, message_t m)
{
    field_t field;
    bool more;

    for (;;) {
        lh_status_t status = message_next(&m, &field, &more);
        if (status != LH_OK) return status;
        if (!more) return LH_OK;
        if (field.number == 2) {
            status = field_expect(&m, &field, WIRE_BYTES, "precompiled_charsmap");
            if (status != LH_OK) return status;
            f->charsmap = field.message;
        }
        if (field.wire != WIRE_VARINT) continue;
        if (field.number == 3) f->add_dummy_prefix = field.value != 0;
        if (field.number == 4) f->remove_extra = field.value != 0;
        if (field.number == 5) f->escape = field.value != 0;
    }
}

/* ModelProto. */
static lh_status_t read_fields(tokenizer_t *t, model_file_t *f, message_t m)
{
    field_t field;
    bool more;

    for (;;) {
        lh_status_t status = message_next(&m, &field, &more);
        if (status != LH_OK) return status;
        if (!more) break;
        if (field.number > 3) continue; /* self-test data and the like */
        status = field_expect(&m, &field, WIRE_BYTES, "of the model");
        f->has_trainer = f->has_trainer || field.number == 2;
        f->has_normalizer = f->has_normalizer || field.number == 3;
        if (status == LH_OK && field.number == 1) status = read_piece(t, f, field.message);
        if (status == LH_OK && field.number == 2) status = read_trainer(f, field.message);
        if (status == LH_OK && field.number == 3) status = read_spaces(f, field.message);
        if (status != LH_OK) return status;
    }
    if (t->pieces.count == 0) return fail(LH_INVALID, "%s has no pieces", f->path);
    /* Without them all would have its default, and a model that was cut off would pass for another
     * one. */
    if (!f->has_trainer || !f->has_normalizer)
        return fail(LH_INVALID, "%s has no %s; is it cut off?", f->path,
                    f->has_trainer ? "normalizer_spec" : "trainer_spec");
    return LH_OK;
}

/* Trainers offer models of words and of characters as well, which nobody seems to publish. */
static lh_status_t refuse_kind(const model_file_t *f)
{
    static const char *const kinds[] = {"0", "unigram", "BPE", "word", "char"};

    if (f->model_type != KIND_UNIGRAM && f->model_type != KIND_BPE)
        return fail(LH_UNSUPPORTED,
                    "%s: the sentencepiece model is of kind '%s'; unigram and BPE are supported",
                    f->path, f->model_type <= 4 ? kinds[f->model_type] : "unknown");
    if (f->suffix)
        return fail(LH_UNSUPPORTED, "%s: treat_whitespace_as_suffix is set, which is not supported",
                    f->path);
    return LH_OK;
}

/* Whether a piece may come out of a join. Control tokens and bytes never stand in a text as they
 * are spelt. */
static bool piece_is_joined(const tokenizer_t *t, uint32_t id)
{
    return t->types[id] == PIECE_NORMAL || t->types[id] == PIECE_USER ||
           t->types[id] == PIECE_UNUSED;
}

/* Finds the one piece of type unknown, which characters outside of the vocabulary become, unless
 * they are written as their bytes. */
static lh_status_t check_types(tokenizer_t *t, const model_file_t *f)
{
    for (uint32_t id = 0; id < t->pieces.count; id++) {
        if (t->types[id] != PIECE_UNKNOWN) continue;
        if (t->unknown >= 0)
            return fail(LH_INVALID, "%s: the pieces %d and %u are both of type unknown", f->path,
                        t->unknown, id);
        t->unknown = (int32_t)id;
    }
    if (t->unknown < 0) return fail(LH_INVALID, "%s has no piece of type unknown", f->path);
    return f->byte_fallback ? tokenizer_bytes_from_fallback(t, f->path) : LH_OK;
}

/* Characters that only stand inside of pieces, or are unused ones, take part in joins, but are
 * unknown by themselves. */
static lh_status_t add_inner_characters(tokenizer_t *t)
{
    for (uint32_t id = 0; id < t->pieces.count; id++) {
        piece_t piece;
        if (!piece_is_joined(t, id) || !piece_table_get(&t->pieces, id, &piece)) continue;
        const unsigned char *p = (const unsigned char *)piece.bytes, *end = p + piece.length;
        while (p < end) {
            uint32_t size, symbol;
            const uint32_t c = text_utf8_decode(p, end, &size);
            p += size;
            /* An alias that is there already serves all pieces that hold the character. */
            const uint32_t known = bpe_find_character(&t->bpe, c);
            if (known >= t->bpe.first_alias && known != BPE_NONE) continue;
            if (known != BPE_NONE && t->types[known] != PIECE_UNUSED) continue;
            lh_status_t status = bpe_add_alias(&t->bpe, (bpe_alias_t){-1, c}, &symbol);
            if (status == LH_OK) status = bpe_add_character(&t->bpe, c, symbol);
            if (status != LH_OK) return status;
        }
    }
    return LH_OK;
}

/* The symbol that stands for a part of a piece: a character or a piece; BPE_NONE if it is neither.
 */
static uint32_t symbol_of(const tokenizer_t *t, const char *bytes, size_t length)
{
    uint32_t size;
    const unsigned char *p = (const unsigned char *)bytes;
    const uint32_t c = text_utf8_decode(p, p + length, &size);
    if (size == length) return bpe_find_character(&t->bpe, c);

    const int32_t id = piece_table_find(&t->pieces, bytes, length);
    return id < 0 || !piece_is_joined(t, (uint32_t)id) ? BPE_NONE : (uint32_t)id;
}

/* All merges that make this piece: each cut between two characters whose halves both have a
 * symbol. */
static lh_status_t add_splits(tokenizer_t *t, const char *path, uint32_t id, uint32_t rank)
{
    piece_t piece;
    if (!piece_is_joined(t, id) || !piece_table_get(&t->pieces, id, &piece)) return LH_OK;

    for (size_t cut = 1; cut < piece.length; cut++) {
        /* not between two characters */
        if (text_utf8_follows(piece.bytes[cut])) continue;
        const uint32_t left = symbol_of(t, piece.bytes, cut);
        const uint32_t right = symbol_of(t, piece.bytes + cut, piece.length - cut);
        if (left == BPE_NONE || right == BPE_NONE) continue;
        const lh_status_t status = tokenizer_join(t, path, left, right, rank, id);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

/* For sorting; of equal scores the lower id comes first, so that the order does not depend on
 * qsort. */
typedef struct scored {
    float score;
    uint32_t id;
} scored_t;

static int by_score(const void *a, const void *b)
{
    const scored_t *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* The higher the score, the earlier a pair is joined; equal scores go from left to right, so they
 * share a rank. */
static lh_status_t make_scored_merges(tokenizer_t *t, const char *path, const float *scores)
{
    const size_t count = t->pieces.count;
    scored_t *order = mem_array(count, sizeof(*order));
    if (order == NULL) return LH_NO_MEMORY;

    for (uint32_t id = 0; id < count; id++)
        order[id] = (scored_t){scores[id], id};
    qsort(order, count, sizeof(*order), by_score);
    lh_status_t status = LH_OK;
    uint32_t rank = 0;
    for (size_t i = 0; i < count && status == LH_OK; i++) {
        /* Ranks count up where the score changes, so that pieces of one score share one. */
        if (i > 0 && order[i].score != order[i - 1].score) rank++;
        status = add_splits(t, path, order[i].id, rank);
    }
    mem_free(order);
    return status;
}

/* Joins take user-defined pieces from the text first and join them with nothing. */
static lh_status_t freeze_user_piece(tokenizer_t *t, uint32_t id, piece_t piece)
{
    uint32_t symbol;
    lh_status_t status = bpe_add_alias(&t->bpe, (bpe_alias_t){(int32_t)id, 0}, &symbol);
    if (status == LH_OK)
        status = piece_trie_add(&t->bpe.frozen, piece.bytes, piece.length,
                                (int32_t)(symbol - t->bpe.first_alias));
    t->bpe.has_frozen = true;
    return status;
}

/* The charsmap does not touch user-defined pieces. */
static lh_status_t add_user_pieces(tokenizer_t *t, space_rules_t *rules)
{
    for (uint32_t id = 0; id < t->pieces.count; id++) {
        piece_t piece;
        if (t->types[id] != PIECE_USER || !piece_table_get(&t->pieces, id, &piece)) continue;
        lh_status_t status = piece_trie_add(&rules->kept, piece.bytes, piece.length, 0);
        if (status == LH_OK && t->model == MODEL_BPE) status = freeze_user_piece(t, id, piece);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

/* Unused pieces are joined like others on the way to longer ones, but are written as their
 * parts. */
static lh_status_t mark_unused(tokenizer_t *t)
{
    if (memchr(t->types, PIECE_UNUSED, t->pieces.count) == NULL) return LH_OK;

    t->bpe.unused = mem_new(t->pieces.count);
    if (t->bpe.unused == NULL) return LH_NO_MEMORY;
    for (uint32_t id = 0; id < t->pieces.count; id++)
        t->bpe.unused[id] = t->types[id] == PIECE_UNUSED;
    return LH_OK;
}

/* Control tokens have ids and are decoded, but no text becomes one unless it is asked for. */
static lh_status_t add_controls(tokenizer_t *t, const char *path)
{
    for (uint32_t id = 0; id < t->pieces.count; id++) {
        piece_t piece;
        if (t->types[id] != PIECE_CONTROL || !piece_table_get(&t->pieces, id, &piece)) continue;
        const lh_status_t status = tokenizer_add_special(t, path, id, piece.bytes, piece.length);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

/* The one step of normalizing: charsmap and rules for spaces. */
static lh_status_t make_spaces(tokenizer_t *t, const model_file_t *f)
{
    normalize_step_t step = {.by = NORMALIZE_SPACES,
                             .spaces = {.add_dummy_prefix = f->add_dummy_prefix,
                                        .remove_extra = f->remove_extra,
                                        .escape = f->escape}};
    lh_status_t status = normalize_charsmap_read(f->path, f->charsmap.bytes, f->charsmap.length,
                                                 &step.spaces.charsmap);
    if (status == LH_OK) status = add_user_pieces(t, &step.spaces);
    if (status != LH_OK) {
        normalize_charsmap_free(&step.spaces.charsmap);
        piece_trie_free(&step.spaces.kept);
        return status;
    }
    normalize_find_plain(&step.spaces, false);
    return normalizer_add(&t->normalizer, step);
}

/* Marks become spaces again, byte pieces bytes, and the unknown piece what the file says for it. */
static lh_status_t make_decoder(tokenizer_t *t, model_file_t *f)
{
    static const char question[] = " \xE2\x81\x87 "; /* sentencepiece's default */
    decoder_t *d = &t->decoder;

    d->by_type = true;
    d->byte_fallback = true;
    d->surface = f->surface != NULL ? f->surface : mem_text(question);
    f->surface = NULL;
    memcpy(d->mark, space_mark, sizeof(space_mark));
    if (f->add_dummy_prefix || f->remove_extra) memcpy(d->strip, space_mark, sizeof(space_mark));
    d->strip_all = f->remove_extra;
    return d->surface != NULL ? LH_OK : LH_NO_MEMORY;
}

/* bos, eos, pad and unk as the trainer was told; eod is eos, as sentencepiece has no other end. */
static lh_status_t find_specials(tokenizer_t *t, const model_file_t *f)
{
    const struct {
        const char *name;
        int64_t id;
        int32_t *out;
    } rows[] = {
        {"bos_id", f->bos, &t->special.bos},
        {"eos_id", f->eos, &t->special.eos},
        {"pad_id", f->pad, &t->special.pad},
        {"unk_id", t->unknown, &t->special.unk},
    };
    for (size_t i = 0; i < 4; i++) {
        if (rows[i].id < -1 || rows[i].id >= (int64_t)t->pieces.count)
            return fail(LH_INVALID, "%s: %s is %lld; the model has %zu pieces", f->path,
                        rows[i].name, (long long)rows[i].id, t->pieces.count);
        *rows[i].out = (int32_t)rows[i].id;
    }
    /* ids may be stated for pieces that the model does not have as control tokens */
    if (t->special.bos >= 0 && t->types[t->special.bos] != PIECE_CONTROL) t->special.bos = -1;
    if (t->special.eos >= 0 && t->types[t->special.eos] != PIECE_CONTROL) t->special.eos = -1;
    t->special.eod = t->special.eos;
    return LH_OK;
}

/* Characters before aliases, and both before merges, whose symbols they are. */
static lh_status_t make_bpe(tokenizer_t *t, const model_file_t *f)
{
    t->kind = f->byte_fallback ? "sentencepiece BPE with byte fallback" : "sentencepiece BPE";
    t->bpe.unknown = (uint32_t)t->unknown;
    t->bpe.fuse_unknown = true;
    lh_status_t status = tokenizer_characters(t);
    if (status == LH_OK) status = add_inner_characters(t);
    if (status == LH_OK) status = make_scored_merges(t, f->path, f->scores);
    if (status == LH_OK) status = mark_unused(t);
    return status;
}

/* As sentencepiece's unigram_model.cc: the lowest and the highest score are those of normal pieces.
 * A user-defined piece is worth so much for each of its bytes that no other way is better; the
 * highest score starts at the smallest positive float there (FLT_MIN), and so it does here. */
static lh_status_t make_unigram(tokenizer_t *t, const model_file_t *f)
{
    unigram_t *u = &t->unigram;
    const size_t count = t->pieces.count;
    float lowest = FLT_MAX, highest = FLT_MIN;

    t->kind = f->byte_fallback ? "sentencepiece unigram with byte fallback"
                               : "sentencepiece unigram";
    u->single = true;
    u->unknown = t->unknown;
    u->score_count = count;
    u->scores = mem_array(count, sizeof(*u->scores));
    uint8_t *taken = mem_new(count);
    lh_status_t status = u->scores == NULL || taken == NULL ? LH_NO_MEMORY : LH_OK;
    for (uint32_t id = 0; id < count && status == LH_OK; id++) {
        if (t->types[id] != PIECE_NORMAL) continue;
        if (f->scores[id] < lowest) lowest = f->scores[id];
        if (f->scores[id] > highest) highest = f->scores[id];
    }
    for (uint32_t id = 0; id < count && status == LH_OK; id++) {
        piece_t piece;
        taken[id] = t->types[id] == PIECE_NORMAL || t->types[id] == PIECE_USER;
        u->scores[id] = f->scores[id];
        if (t->types[id] == PIECE_USER && piece_table_get(&t->pieces, id, &piece))
            u->scores[id] = (float)piece.length * highest - 0.1;
    }
    if (status == LH_OK) status = unigram_finish(u, f->path, &t->pieces, taken, (double)lowest);
    mem_free(taken);
    return status;
}

/* Once the file is read. The cuts into words come last: frozen pieces count for them. */
static lh_status_t put_together(tokenizer_t *t, model_file_t *f)
{
    t->model = f->model_type == KIND_BPE ? MODEL_BPE : MODEL_UNIGRAM;
    t->bpe.first_alias = (uint32_t)t->pieces.count;
    lh_status_t status = check_types(t, f);
    if (status == LH_OK) status = t->model == MODEL_BPE ? make_bpe(t, f) : make_unigram(t, f);
    if (status == LH_OK) status = make_spaces(t, f);
    if (status == LH_OK) status = add_controls(t, f->path);
    if (status == LH_OK) status = make_decoder(t, f);
    if (status == LH_OK) status = find_specials(t, f);
    if (status == LH_OK && t->model == MODEL_BPE) status = tokenizer_cut_words(t);
    return status;
}

/* model_type 1 is unigram, which a file that leaves the field out would be. */
lh_status_t tokenizer_read_sentencepiece(tokenizer_t *t, const char *path, const char *bytes,
                                         size_t length)
{
    /* The defaults of the proto, for fields that the file leaves out. */
    model_file_t f = {.path = path,
                      .model_type = 1,
                      .unk = 0,
                      .bos = 1,
                      .eos = 2,
                      .pad = -1,
                      .add_dummy_prefix = true,
                      .remove_extra = true,
                      .escape = true};
    lh_status_t status = read_fields(t, &f,
                                     (message_t){.path = path, .bytes = bytes, .length = length});
    if (status == LH_OK) status = refuse_kind(&f);
    if (status == LH_OK) status = put_together(t, &f);
    mem_free(f.scores);
    mem_free(f.surface);
    return status;
}

/* ---- llama2.c's tokenizer.bin ---------------------------------------------------------------- */

/* What llama2.c exports of a sentencepiece BPE model: the length of the longest piece, then of each
 * its score, its length and its bytes, all numbers little-endian of 32 bits, up to the end of the
 * file. Types and rules for spaces are not in it; llama2.c counts on those of Llama 2. Marks are
 * spaces there, and the begin and the end token stand between line feeds. */
enum { BIN_HEAD = 4, BIN_PIECE_HEAD = 8 };

static uint32_t bin_number(const char *bytes)
{
    uint32_t value = 0;
    for (unsigned i = 0; i < 4; i++)
        value |= (uint32_t)(uint8_t)bytes[i] << (8 * i);
    return value;
}

bool tokenizer_is_llama2c(const char *bytes, size_t length)
{
    if (length < BIN_HEAD + BIN_PIECE_HEAD || bytes[2] != '\0' || bytes[3] != '\0') return false;
    const uint32_t first = bin_number(bytes + BIN_HEAD + 4);
    return first > 0 && first <= bin_number(bytes);
}

/* A piece as the model has it, in out, and its type. The first one is what is unknown there; the
 * begin and the end token are known by how they are spelt. */
static uint64_t bin_piece_spell(const tokenizer_t *t, model_file_t *f, piece_t piece, text_t *out)
{
    static const char begin[] = "\n<s>\n", end[] = "\n</s>\n";
    const int64_t id = (int64_t)t->pieces.count;
    const bool is_begin = piece.length == strlen(begin) && memcmp(piece.bytes, begin, 5) == 0;
    const bool is_end = piece.length == strlen(end) && memcmp(piece.bytes, end, 6) == 0;

    out->length = 0;
    if (is_begin || is_end) {
        text_append_n(out, piece.bytes + 1, piece.length - 2);
        *(is_begin ? &f->bos : &f->eos) = id;
        return PIECE_CONTROL;
    }
    for (size_t i = 0; i < piece.length; i++)
        text_append_n(out, piece.bytes[i] == ' ' ? space_mark : piece.bytes + i,
                      piece.bytes[i] == ' ' ? strlen(space_mark) : 1);
    return id == 0 ? PIECE_UNKNOWN : decode_byte(piece) >= 0 ? PIECE_BYTE : PIECE_NORMAL;
}

/* The piece at byte *at, which moves on; spelt is used for one call at a time. */
static lh_status_t bin_read_piece(tokenizer_t *t, model_file_t *f, const char *bytes, size_t length,
                                  size_t *at, text_t *spelt)
{
    const size_t id = t->pieces.count, start = *at, left = length - start;
    const uint32_t longest = bin_number(bytes);
    const uint32_t size = left < BIN_PIECE_HEAD ? 0 : bin_number(bytes + start + 4);

    if (left < BIN_PIECE_HEAD || size > left - BIN_PIECE_HEAD)
        return fail(LH_INVALID, "%s: piece %zu at byte %zu has %zu bytes left, expected %zu",
                    f->path, id, start, left, (size_t)size + BIN_PIECE_HEAD);
    if (size > longest)
        return fail(LH_INVALID,
                    "%s: piece %zu at byte %zu has %u bytes; expected at most %u, which the file "
                    "begins with",
                    f->path, id, start, size, longest);
    const field_t score = {.value = bin_number(bytes + start)};
    const uint64_t type = bin_piece_spell(t, f, (piece_t){bytes + start + BIN_PIECE_HEAD, size},
                                          spelt);
    const lh_status_t status = text_status(spelt);
    if (status != LH_OK) return status;
    *at = start + BIN_PIECE_HEAD + size;
    return add_scored_piece(t, f, (piece_t){spelt->data, spelt->length}, field_float(&score), type);
}

/* llama2.c writes the unknown piece as it is spelt. */
lh_status_t tokenizer_read_llama2c(tokenizer_t *t, const char *path, const char *bytes,
                                   size_t length)
{
    model_file_t f = {.path = path,
                      .model_type = KIND_BPE,
                      .bos = -1,
                      .eos = -1,
                      .pad = -1,
                      .byte_fallback = true,
                      .add_dummy_prefix = true,
                      .escape = true};
    piece_t unknown;
    text_t spelt = {0};
    lh_status_t status = LH_OK;
    for (size_t at = BIN_HEAD; status == LH_OK && at < length;)
        status = bin_read_piece(t, &f, bytes, length, &at, &spelt);
    text_free(&spelt);
    if (status == LH_OK && piece_table_get(&t->pieces, 0, &unknown)) {
        f.surface = mem_text_n(unknown.bytes, unknown.length);
        if (f.surface == NULL) status = LH_NO_MEMORY;
    }
    if (status == LH_OK) status = put_together(t, &f);
    if (status == LH_OK) t->kind = "llama2.c's BPE with byte fallback";
    mem_free(f.scores);
    mem_free(f.surface);
    return status;
}
