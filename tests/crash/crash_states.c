/* crash_states.c - walks a journal, keeps apart what is on the disk and what may be, and builds the
 * combinations. */
#include <crash/crash_states.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <base/sys.h>

enum { PENDING_MOST = 4096, SEEN_FIRST = 1 << 12, RECHECK_EVERY = 256, JUNK = 0xa5 };

typedef struct walk {
    const mem_fs_t *fs;
    const crash_walk_how_t *how;
    crash_count_t *count;
    crash_expect_t expect;
    mem_tree_t disk; /* what is surely there */
    pool_t *disk_pool, *state_pool;
    mem_fs_t *view; /* shows one state to whoever looks */
    const mem_change_t *pending[PENDING_MOST];
    bool kept[PENDING_MOST];
    uint32_t pending_count;
    uint64_t seed;
    uint64_t *seen; /* digests of what was looked at and found well */
    size_t seen_count, seen_room;
} walk_t;

uint64_t crash_random(uint64_t *seed)
{
    uint64_t x = *seed += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* True if it was there already; now it is. */
static bool put_digest(uint64_t *seen, size_t room, uint64_t digest)
{
    size_t at = (size_t)digest & (room - 1);
    while (seen[at] != 0 && seen[at] != digest)
        at = (at + 1) & (room - 1);
    const bool there = seen[at] == digest;
    seen[at] = digest;
    return there;
}

static bool seen_before(walk_t *w, uint64_t digest)
{
    if (digest == 0) digest = 1;
    if (2 * w->seen_count >= w->seen_room) {
        const size_t room = w->seen_room == 0 ? SEEN_FIRST : 2 * w->seen_room;
        uint64_t *bigger = calloc(room, sizeof(*bigger));
        if (bigger == NULL) abort();
        for (size_t i = 0; i < w->seen_room; i++)
            if (w->seen[i] != 0) (void)put_digest(bigger, room, w->seen[i]);
        free(w->seen);
        w->seen = bigger;
        w->seen_room = room;
    }
    const bool there = put_digest(w->seen, w->seen_room, digest);
    if (!there) w->seen_count++;
    return there;
}

/* Builds the state of w->kept and `last` (may be NULL), and has it looked at. */
static void look_at(walk_t *w, const mem_change_t *last, uint8_t fill)
{
    pool_reset(w->state_pool);
    mem_tree_t *tree = &w->view->live;
    mem_tree_shadow(tree, &w->disk, w->state_pool);
    tree->fill = fill;
    for (uint32_t i = 0; i < w->pending_count; i++)
        if (w->kept[i]) mem_tree_apply(tree, w->pending[i]);
    if (last != NULL) mem_tree_apply(tree, last);

    w->count->states++;
    if (w->how->pick_every > 0 && crash_random(&w->seed) % w->how->pick_every == 0)
        w->how->pick(w->how->context, tree, &w->expect);
    uint64_t digest = mem_tree_digest(tree);
    digest ^= w->expect.floor * UINT64_C(0x9e3779b97f4a7c15) + w->expect.newest;
    digest += w->expect.said * UINT64_C(0xbf58476d1ce4e5b9);
    if (seen_before(w, digest) && w->count->states % RECHECK_EVERY != 0) return;

    w->count->looks++;
    mem_fs_use(w->view);
    memset(w->view->files, 0, sizeof(w->view->files));
    w->view->looked_behind_dots = 0;
    const char *fault = w->how->look(w->how->context, &w->expect);
    if (fault == NULL && w->view->looked_behind_dots > 0) fault = "a reader looked at hidden names";
    if (fault == NULL) return;
    if (w->count->faults++ == 0)
        (void)snprintf(w->count->first, sizeof(w->count->first), "%s", fault);
}

/* One choice of what is there; where bytes are missing, zeros and then junk in their place. */
static void look_both_ways(walk_t *w, const mem_change_t *last)
{
    bool bytes_missing = false;
    for (uint32_t i = 0; i < w->pending_count && !bytes_missing; i++)
        bytes_missing = !w->kept[i] && w->pending[i]->kind == CHANGE_DATA;
    look_at(w, last, 0);
    if (bytes_missing || (last != NULL && last->kind == CHANGE_SIZE)) look_at(w, last, JUNK);
}

static void choose_all(walk_t *w, bool there)
{
    for (uint32_t i = 0; i < w->pending_count; i++)
        w->kept[i] = there;
}

/* Too many to build all: all, none, all but one, only one, and then by chance. */
static void sample(walk_t *w, const mem_change_t *last)
{
    for (int all = 0; all < 2; all++) {
        choose_all(w, all != 0);
        look_both_ways(w, last);
        for (uint32_t i = 0; i < w->pending_count; i++) {
            w->kept[i] = all == 0;
            look_both_ways(w, last);
            w->kept[i] = all != 0;
        }
    }
    for (uint32_t n = 0; n < w->how->samples; n++) {
        const uint64_t odds = crash_random(&w->seed) % 7 + 1; /* of 8 */
        for (uint32_t i = 0; i < w->pending_count; i++)
            w->kept[i] = crash_random(&w->seed) % 8 < odds;
        look_both_ways(w, last);
    }
}

/* Every state of this moment that has `last` in it: those without were those of the moment before.
 */
static void combine(walk_t *w, const mem_change_t *last)
{
    w->count->moments++;
    if (w->pending_count > w->how->whole_bits) {
        sample(w, last);
        return;
    }
    for (uint64_t mask = 0; mask < UINT64_C(1) << w->pending_count; mask++) {
        for (uint32_t i = 0; i < w->pending_count; i++)
            w->kept[i] = (mask >> i & 1) != 0;
        look_both_ways(w, last);
    }
}

/* What is pending of an inode comes to the disk for sure, or never will. */
static void settle(walk_t *w, uint32_t inode, bool there)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < w->pending_count; i++) {
        const mem_change_t *c = w->pending[i];
        if (c->inode != inode)
            w->pending[left++] = c;
        else if (there)
            mem_tree_apply(&w->disk, c);
    }
    w->pending_count = left;
}

static void mark(walk_t *w, uint64_t number)
{
    const uint64_t step = number & UINT32_MAX;
    if (step > w->expect.newest) w->expect.newest = step;
    if ((number & MARK_RETURNED) == 0) return;
    w->expect.floor = w->expect.said = step;
    combine(w, NULL); /* the same states again, with more to be asked of them */
}

static void walk(walk_t *w)
{
    combine(w, NULL);
    for (uint32_t i = 0; i < w->fs->count; i++) {
        const mem_change_t *c = &w->fs->changes[i];
        switch (c->kind) {
        case CHANGE_SYNC: settle(w, c->inode, true); break;
        case CHANGE_LOST:
            settle(w, c->inode, false);
            if (c->at != 0) mem_tree_apply(&w->disk, c);
            break;
        case CHANGE_MARK: mark(w, c->at); break;
        default:
            combine(w, c);
            if (w->pending_count == PENDING_MOST) abort();
            w->pending[w->pending_count++] = c;
        }
    }
}

void crash_count_add(crash_count_t *sum, const crash_count_t *count)
{
    if (sum->faults == 0) memcpy(sum->first, count->first, sizeof(sum->first));
    sum->moments += count->moments;
    sum->states += count->states;
    sum->looks += count->looks;
    sum->faults += count->faults;
}

void crash_walk(const mem_fs_t *fs, const crash_walk_how_t *how, crash_count_t *count)
{
    const sys_t *before = sys();
    mem_fs_t *used = mem_fs_used();
    walk_t *w = calloc(1, sizeof(*w));
    if (w == NULL) abort();
    w->fs = fs;
    w->how = how;
    w->count = count;
    w->expect = how->expect;
    w->seed = how->seed;
    w->disk_pool = pool_new();
    w->state_pool = pool_new();
    w->view = mem_fs_new(NULL);
    mem_tree_shadow(&w->disk, &fs->start, w->disk_pool);
    mem_tree_prepare(&w->disk, &fs->live);

    sys_use(&mem_table);
    walk(w);
    sys_use(before);
    mem_fs_use(used);

    mem_fs_free(w->view);
    pool_free(w->disk_pool);
    pool_free(w->state_pool);
    free(w->seen);
    free(w);
}
