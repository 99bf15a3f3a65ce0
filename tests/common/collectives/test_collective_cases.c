#include "common/base/random.h"
#include "tests/common/collectives/collective_case.h"
#include "tests/support/sanitized.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_COUNT = 1021 };

enum { MILLION = SANITIZED ? 100000 : 1000000 };

static const dtype types[] = {DTYPE_F32, DTYPE_F64, DTYPE_F16, DTYPE_BF16, DTYPE_I64, DTYPE_I32};
static const collective_kind kinds[] = {
    COLLECTIVE_ALL_REDUCE,     COLLECTIVE_REDUCE,  COLLECTIVE_BROADCAST, COLLECTIVE_ALL_GATHER,
    COLLECTIVE_REDUCE_SCATTER, COLLECTIVE_GATHER,  COLLECTIVE_SCATTER,   COLLECTIVE_ALL_TO_ALL,
    COLLECTIVE_SEND,           COLLECTIVE_BARRIER,
};
enum { TYPES = sizeof types / sizeof types[0], KINDS = sizeof kinds / sizeof kinds[0] };

typedef struct plan {
    const char *implementation;
    int64_t inline_bytes, staging_bytes;
    int sampled_in; /* Under a sanitizer, one of `sampled_in` cases runs, and the others are left out. */
    /* True if every count runs with every type and operation, both in place and not. */
    bool full;
} plan;

static bool is_prime(int64_t p)
{
    for (int64_t d = 2; d * d <= p; d++)
        if (p % d == 0) return false;
    return p > 1;
}

/* Returns true if this count is to be tested: small counts, counts near n, 1009, and primes. Above four ranks
 * only every tenth prime is tested. The number of ranks determines which primes. */
static bool is_counted(int64_t count, int n)
{
    if (count == 0 || count == 1 || (count >= n - 1 && count <= n + 1) || count == 1009) return true;
    return is_prime(count) && (n <= 4 || (count / 2 + n) % 10 == 0);
}

/* Returns false for sends, receives and all_to_all in place, which are not supported. */
static bool fits(const collective_case *c)
{
    return !c->in_place || (c->kind != COLLECTIVE_ALL_TO_ALL && c->kind != COLLECTIVE_SEND);
}

static bool taken(const plan *p, uint64_t index)
{
    return !SANITIZED || random_mix(index * RANDOM_GOLDEN) % (uint64_t)p->sampled_in == 0;
}

static status run_if_taken(const plan *p, collective_group *g, case_arena *arena, const collective_case *c,
                           uint64_t index)
{
    if (!fits(c) || !taken(p, index)) return STATUS_OK;
    return case_run(g, arena, c);
}

/* Runs every kind at every count. Type, operation, root, memory, and whether the call is in place change from
 * case to case. */
static status run_all_counts(const plan *p, collective_group *g, case_arena *arena, int n)
{
    uint64_t index = (uint64_t)n << 32;
    for (int64_t count = 0; count <= 1009; count++) {
        if (!is_counted(count, n)) continue;
        for (int k = 0; k < KINDS; k++, index++) {
            uint64_t draw = random_mix(index + RANDOM_GOLDEN);
            collective_case c = {kinds[k],
                                 (reduce_op)(draw % REDUCE_OP_COUNT),
                                 types[draw / 8 % TYPES],
                                 count,
                                 (int)(draw >> 8 & 0xff) % n,
                                 (draw >> 20 & 1) != 0,
                                 (case_memory)((draw >> 24) % CASE_MEMORY_COUNT)};
            TRY(run_if_taken(p, g, arena, &c, index));
        }
    }
    return STATUS_OK;
}

/* Runs reductions with every type and operation, in place and not, at counts that do not divide evenly. Above
 * four ranks only every third of these counts is tested. The number of ranks determines which counts. */
static status run_all_types(const plan *p, collective_group *g, case_arena *arena, int n)
{
    static const collective_kind reductions[] = {COLLECTIVE_ALL_REDUCE, COLLECTIVE_REDUCE,
                                                 COLLECTIVE_REDUCE_SCATTER};
    const int64_t counts[] = {0, 1, n - 1, n, n + 1, 1009};
    uint64_t index = (uint64_t)n << 48;
    for (int k = 0; k < 3; k++)
        for (int t = 0; t < TYPES; t++)
            for (int op = 0; op < REDUCE_OP_COUNT; op++)
                for (int i = 0; i < 6; i++)
                    for (int place = 0; place < 2; place++, index++) {
                        collective_case c = {reductions[k],
                                             (reduce_op)op,
                                             types[t],
                                             counts[i],
                                             (int)(index % (uint64_t)n),
                                             place != 0,
                                             (case_memory)(index % CASE_MEMORY_COUNT)};
                        if (n <= 4 || index % 3 == (uint64_t)n % 3) TRY(run_if_taken(p, g, arena, &c, index));
                    }
    return STATUS_OK;
}

static bool reduces(collective_kind kind)
{
    return kind == COLLECTIVE_ALL_REDUCE || kind == COLLECTIVE_REDUCE || kind == COLLECTIVE_REDUCE_SCATTER;
}

/* Runs each count with each kind, type and operation, in place and not. Root and memory change from case to
 * case. */
static status run_everything(const plan *p, collective_group *g, case_arena *arena, int n)
{
    uint64_t index = 0;
    for (int64_t count = 0; count <= 1009; count++) {
        if (!(count < 2 || (count >= n - 1 && count <= n + 1) || is_prime(count))) continue;
        for (int k = 0; k < KINDS; k++)
            for (int t = 0; t < TYPES; t++)
                for (int op = 0; op < (reduces(kinds[k]) ? REDUCE_OP_COUNT : 1); op++)
                    for (int place = 0; place < 2; place++, index++) {
                        collective_case c = {kinds[k],
                                             (reduce_op)op,
                                             types[t],
                                             count,
                                             (int)(index % (uint64_t)n),
                                             place != 0,
                                             (case_memory)(random_mix(index) % CASE_MEMORY_COUNT)};
                        TRY(run_if_taken(p, g, arena, &c, index));
                    }
    }
    return STATUS_OK;
}

static status rank_of_cases(rank_context *context)
{
    const plan *p = context->shared;
    case_arena arena = {0};
    collective_world *world = NULL;
    collective_group *group = NULL;
    status rc;
    TRY_GOTO(rc, case_arena_open(MOST_COUNT, &arena), out);
    collective_window window = {arena.window.data, arena.window.bytes, arena.window.fd};
    collective_config config = ranks_config(context);
    config.windows = &window;
    config.window_count = 1;
    config.inline_bytes = p->inline_bytes;
    config.staging_bytes = p->staging_bytes;
    TRY_GOTO(rc, ranks_open_world(p->implementation, &config, &world), out);
    TRY_GOTO(rc, ranks_group(context, world, &group), out);
    if (p->full) {
        rc = run_everything(p, group, &arena, context->world);
        goto out;
    }
    TRY_GOTO(rc, run_all_counts(p, group, &arena, context->world), out);
    rc = run_all_types(p, group, &arena, context->world);
out:
    if (rc != STATUS_OK && world) {
        error_record why;
        error_copy(&why);
        collective_abort(world, &why);
    }
    collective_group_close(&group);
    collective_close(&world);
    case_arena_close(&arena);
    return rc;
}

static void run_cases(const char *implementation, int64_t inline_bytes, int64_t staging_bytes)
{
    plan p = {implementation, inline_bytes, staging_bytes, 110, false}; /* about 500 cases run */
    for (int n = 1; n <= 16; n++) ranks_run_well(n, rank_of_cases, &p);
}

static void two_shot_agrees_with_a_plain_loop_for_1_to_16_ranks(void **state)
{
    (void)state;
    run_cases("two-shot", 0, 0);
}

/* Avoids the one-step exchange through slots: operands are reduced in place, or staged in many small rounds.
 */
static void two_shot_agrees_with_a_plain_loop_in_place_and_staged(void **state)
{
    (void)state;
    run_cases("two-shot", 1, 1024);
}

static void ring_agrees_with_a_plain_loop_for_1_to_16_ranks(void **state)
{
    (void)state;
    run_cases("ring", 1, 1024);
}

static status rank_of_a_million(rank_context *context)
{
    const plan *p = context->shared;
    case_arena arena = {0};
    collective_world *world = NULL;
    collective_group *group = NULL;
    status rc;
    TRY_GOTO(rc, case_arena_open(MILLION, &arena), out);
    collective_window window = {arena.window.data, arena.window.bytes, arena.window.fd};
    TRY_GOTO(rc, ranks_open(context, p->implementation, &window, 1, &world), out);
    TRY_GOTO(rc, ranks_group(context, world, &group), out);
    for (int memory = CASE_WINDOW; memory <= CASE_PRIVATE; memory++) {
        collective_case c = {COLLECTIVE_ALL_REDUCE, REDUCE_SUM,         DTYPE_F32, MILLION, 0,
                             memory == CASE_WINDOW, (case_memory)memory};
        TRY_GOTO(rc, case_run(group, &arena, &c), out);
    }
out:
    collective_group_close(&group);
    collective_close(&world);
    case_arena_close(&arena);
    return rc;
}

static void a_million_float32_are_summed_exactly_by_2_3_8_and_16_ranks(void **state)
{
    (void)state;
    static const int worlds[] = {2, 3, 8, 16};
    static const char *const names[] = {"two-shot", "ring"};
    for (int i = 0; i < 2; i++)
        for (int n = 0; n < 4; n++)
            ranks_run_well(worlds[n], rank_of_a_million, &(plan){.implementation = names[i]});
}

static void run_full(const char *implementation, int64_t inline_bytes, int64_t staging_bytes)
{
    plan p = {implementation, inline_bytes, staging_bytes, 110, .full = true};
    for (int n = 1; n <= 16; n++) {
        print_message("# %s, %d ranks\n", implementation, n);
        ranks_run_well(n, rank_of_cases, &p);
    }
}

static void two_shot_agrees_with_a_plain_loop_in_every_case(void **state)
{
    (void)state;
    run_full("two-shot", 0, 0);
    run_full("two-shot", 1, 1024);
}

static void ring_agrees_with_a_plain_loop_in_every_case(void **state)
{
    (void)state;
    run_full("ring", 1, 1024);
}

static int run_long(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_shot_agrees_with_a_plain_loop_in_every_case),
        cmocka_unit_test(ring_agrees_with_a_plain_loop_in_every_case),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--long") == 0) return run_long();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_shot_agrees_with_a_plain_loop_for_1_to_16_ranks),
        cmocka_unit_test(two_shot_agrees_with_a_plain_loop_in_place_and_staged),
        cmocka_unit_test(ring_agrees_with_a_plain_loop_for_1_to_16_ranks),
        cmocka_unit_test(a_million_float32_are_summed_exactly_by_2_3_8_and_16_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
