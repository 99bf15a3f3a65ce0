#include "tests/common/net/net_test.h"

#include "common/base/random.h"
#include "common/net/status_table.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TOKEN = 12 };

static void a_cell_is_one_cache_line_and_says_what_was_written(void **state)
{
    (void)state;
    status_table *b;
    rank_status s;
    assert_int_equal(sizeof(rank_slot), 64);
    assert_ok(status_table_create(TOKEN, 3, &b));
    status_table_read(b, 2, &s);
    assert_int_equal(s.state, RANK_ABSENT);
    assert_int_equal(s.step, -1);
    assert_int_equal(s.bucket, RANK_NO_BUCKET);
    rank_slot *slot = status_table_slot(b, 2);
    assert_int_equal((uintptr_t)slot % 64, 0);
    rank_slot_begin(slot, 2);
    status_table_read(b, 2, &s);
    assert_int_equal(s.state, RANK_RUNNING);
    assert_int_equal(s.pid, getpid());
    uint64_t before = s.progress;
    rank_slot_step(slot, 12, 1000);
    rank_slot_enter(slot, RANK_BACKWARD, 1001);
    rank_slot_agent(slot, RANK_ALL_REDUCE, 3, 1002);
    status_table_read(b, 2, &s);
    assert_int_equal(s.progress - before, 3);
    assert_int_equal(s.time_ns, 1002);
    assert_int_equal(s.operation, RANK_BACKWARD);
    rank_slot_finish(slot);
    status_table_read(b, 2, &s);
    assert_int_equal(s.state, RANK_FINISHED);
    status_table_close(&b);
    assert_null(b);
}

static void a_rank_is_behind_by_what_it_has_enqueued_then_started_then_completed(void **state)
{
    (void)state;
    static const rank_status in_order[] = {/* The counter is one step before it wraps around. */
                                           {.enqueued = UINT32_MAX, .started = UINT32_MAX, .completed = 9},
                                           {.enqueued = 2, .started = 1, .completed = 1},
                                           {.enqueued = 3, .started = 1, .completed = 1},
                                           {.enqueued = 3, .started = 2, .completed = 1},
                                           {.enqueued = 3, .started = 2, .completed = 2}};
    int count = sizeof in_order / sizeof in_order[0];
    for (int a = 0; a < count; a++)
        for (int b = 0; b < count; b++)
            assert_int_equal(rank_status_is_behind(&in_order[a], &in_order[b]), a < b);
}

static void a_status_reads_like_a_sentence(void **state)
{
    (void)state;
    static const struct {
        rank_status s;
        const char *text;
    } cases[] = {
        {{.step = -1, .operation = RANK_SETUP, .bucket = -1}, "before step 0 in setup"},
        {{.step = 0, .operation = RANK_FORWARD, .bucket = -1}, "at step 0 in forward"},
        {{.step = 12, .operation = RANK_WAIT, .agent = RANK_ALL_REDUCE, .bucket = 3},
         "at step 12 in wait, all_reduce of bucket 3 in flight"},
        {{.step = 12, .operation = RANK_WAIT, .agent = RANK_PULL, .bucket = -1},
         "at step 12 in wait, pull in flight"},
        {{.step = 12,
          .operation = RANK_WAIT,
          .agent = RANK_ALL_REDUCE,
          .bucket = 3,
          .enqueued = 41,
          .started = 41,
          .completed = 40},
         "at step 12 in wait, all_reduce of bucket 3 in flight (collectives: 41 enqueued, 41 started, 40 "
         "completed)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[RANK_STATUS_TEXT];
        assert_string_equal(rank_status_format(&cases[i].s, text, sizeof text), cases[i].text);
    }
    for (int a = 0; a < RANK_OPERATION_COUNT; a++)
        for (int b = 0; b < a; b++)
            assert_string_not_equal(rank_operation_name((rank_operation)a),
                                    rank_operation_name((rank_operation)b));
}

static void another_process_sees_the_table_and_only_the_right_one_is_attached(void **state)
{
    (void)state;
    status_table *b, *other = NULL;
    assert_ok(status_table_create(TOKEN, 2, &b));
    pid_t pid = fork();
    if (pid == 0) {
        status_table *mine;
        if (status_table_attach(dup(status_table_memory_fd(b)), dup(status_table_notify_fd(b)), TOKEN, 2,
                                &mine) != STATUS_OK)
            _exit(1);
        rank_slot_begin(status_table_slot(mine, 1), 1);
        rank_slot_enter(status_table_slot(mine, 1), RANK_LOSS, 5);
        status_table_close(&mine);
        _exit(0);
    }
    int result;
    waitpid(pid, &result, 0);
    assert_int_equal(result, 0);
    rank_status s;
    status_table_read(b, 1, &s);
    assert_int_equal(s.pid, pid);
    assert_int_equal(s.operation, RANK_LOSS);
    int m = status_table_memory_fd(b), n = status_table_notify_fd(b);
    assert_fails(status_table_attach(dup(m), dup(n), TOKEN + 1, 2, &other), STATUS_PROTOCOL, "job token");
    assert_fails(status_table_attach(dup(m), dup(n), TOKEN, 1, &other), STATUS_CONFIG,
                 "got a world size of 2, expected 1");
    assert_fails(status_table_attach(dup(m), dup(n), TOKEN, 100000, &other), STATUS_PROTOCOL,
                 "shared memory of the launcher");
    assert_fails(status_table_attach(dup(0), dup(n), TOKEN, 2, &other), STATUS_PROTOCOL, "the launcher");
    assert_fails(status_table_attach(-1, dup(n), TOKEN, 2, &other), STATUS_SYSTEM, "the launcher");
    status_table_close(&b);
}

enum { RUNNERS = 4 };

/* A rank that may be up to `slack` steps ahead of the slowest rank. */
typedef struct runner {
    status_table *b;
    int rank;
    int64_t slack;
    _Atomic int64_t *ended; /* [RUNNERS] Number of steps that each rank has ended. */
    uint64_t seed;
} runner;

static bool may_begin(const runner *r, int64_t step)
{
    for (int other = 0; other < RUNNERS; other++)
        if (atomic_load(&r->ended[other]) + r->slack < step) return false;
    return true;
}

static void *run_steps(void *context)
{
    runner *r = context;
    int64_t step = 0;
    for (; !job_stop_here(r->b, r->rank, step, false); step++) {
        while (!may_begin(r, step)) sched_yield();
        if (random_below(r->seed, (uint64_t)step, 50) == 0) clock_sleep_ns(20000);
        atomic_store(&r->ended[r->rank], step + 1);
    }
    return NULL;
}

/* Returns how many steps each rank ran, and fails the test if they differ. */
static int64_t stop_runners(uint64_t seed, int64_t slack)
{
    status_table *b;
    pthread_t threads[RUNNERS];
    runner runners[RUNNERS];
    _Atomic int64_t ended[RUNNERS] = {0};
    assert_ok(status_table_create(TOKEN, RUNNERS, &b));
    for (int r = 0; r < RUNNERS; r++) {
        runners[r] = (runner){b, r, slack, ended, random_start(seed, (uint64_t)r)};
        assert_int_equal(pthread_create(&threads[r], NULL, run_steps, &runners[r]), 0);
    }
    clock_sleep_ns((int64_t)random_below(seed, 0, 2000) * 1000);
    job_stop_decide(b, job_stop_hold(b, SIGTERM));
    for (int r = 0; r < RUNNERS; r++) pthread_join(threads[r], NULL);
    for (int r = 1; r < RUNNERS; r++) assert_int_equal(ended[r], ended[0]);
    status_table_close(&b);
    return ended[0];
}

static void all_ranks_stop_after_the_same_step(void **state)
{
    (void)state;
    int64_t most = 0;
    for (uint64_t seed = 0; seed < 100; seed++) {
        int64_t steps = stop_runners(seed, (int64_t)seed % 4);
        if (steps > most) most = steps;
    }
    assert_true(most > 0);
}

static void no_rank_begins_a_step_between_hold_and_decide(void **state)
{
    (void)state;
    status_table *b;
    assert_ok(status_table_create(TOKEN, 2, &b));
    assert_false(job_stop_here(b, 0, 6, false));
    assert_false(job_stop_here(b, 1, 7, false));
    assert_int_equal(job_stop_hold(b, SIGINT), 7);
    job_stop_decide(b, 9); /* a rank on another host has already begun step 9 */
    for (int64_t step = 7; step < 10; step++) assert_false(job_stop_here(b, 0, step, false));
    assert_true(job_stop_here(b, 0, 10, false));
    assert_true(job_stop_here(b, 1, 10, false));
    rank_status s;
    status_table_read(b, 0, &s);
    assert_int_equal(s.step, 9);
    status_table_close(&b);
}

static void a_rank_that_waits_for_nobody_stops_before_its_next_step(void **state)
{
    (void)state;
    status_table *b;
    assert_ok(status_table_create(TOKEN, 2, &b));
    assert_false(job_stop_here(b, 1, 8, true));
    job_stop_decide(b, job_stop_hold(b, SIGTERM));
    job_stop_hold(b, SIGINT);
    assert_int_equal(job_stop_requested(b), SIGTERM); /* The first signal is the one that is reported. */
    assert_true(job_stop_here(b, 1, 9, true));
    assert_true(job_stop_here(b, 0, 3, true));
    status_table_close(&b);
}

static void progress_of_other_members_is_seen(void **state)
{
    (void)state;
    status_table *b;
    assert_ok(status_table_create(TOKEN, 2, &b));
    rank_slot *own = status_table_slot(b, 0);
    int64_t begin_ns = status_table_others_ns(b, own);
    assert_true(begin_ns > 0);
    clock_sleep_ns(NS_PER_MS);
    rank_slot_enter(own, RANK_FORWARD, clock_now_ns());
    assert_int_equal(status_table_others_ns(b, own), begin_ns);
    status_table_mirror(b, 1, 5, 3);
    int64_t moved_ns = status_table_others_ns(b, own);
    assert_true(moved_ns > begin_ns);
    clock_sleep_ns(NS_PER_MS);
    status_table_mirror(b, 1, 5, 3);
    assert_int_equal(status_table_others_ns(b, own), moved_ns);
    assert_int_equal(status_table_others_ns(NULL, own), 0);
    status_table_close(&b);
}

typedef struct player {
    status_table *b;
    int rank, blocks;
    atomic_int *running; /* Number of ranks of each job that have the turn. */
    int job;
    atomic_bool *together;
    int64_t cpu_ns;
    pthread_t thread;
} player;

static void *play(void *argument)
{
    player *p = argument;
    rank_slot_begin(status_table_slot(p->b, p->rank), p->rank);
    for (int block = 0; block < p->blocks; block++) {
        job_turn_wait(p->b, p->rank, (uint32_t)block);
        atomic_fetch_add(&p->running[p->job], 1);
        for (int i = 0; i < 20; i++)
            if (atomic_load(&p->running[1 - p->job]) > 0) atomic_store(p->together, true);
        atomic_fetch_sub(&p->running[p->job], 1);
        job_turn_done(p->b, p->rank, (uint32_t)block);
    }
    struct timespec cpu;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
    p->cpu_ns = cpu.tv_sec * NS_PER_S + cpu.tv_nsec;
    return NULL;
}

enum { RANKS = 2, BLOCKS = 50 };

static bool all_done(const status_table *b, uint32_t blocks)
{
    rank_status s;
    for (int r = 0; r < RANKS; r++) {
        status_table_read(b, r, &s);
        if (s.blocks_done < blocks) return false;
    }
    return true;
}

static void granted_blocks_alternate_between_jobs(void **state)
{
    (void)state;
    status_table *b[2];
    atomic_int running[2] = {0};
    atomic_bool together = false;
    player players[2][RANKS];
    for (int job = 0; job < 2; job++) {
        assert_ok(status_table_create(TOKEN, RANKS, &b[job]));
        job_turn_grant(b[job], 0);
        for (int r = 0; r < RANKS; r++) {
            players[job][r] = (player){.b = b[job],
                                       .rank = r,
                                       .blocks = BLOCKS,
                                       .running = running,
                                       .job = job,
                                       .together = &together};
            pthread_create(&players[job][r].thread, NULL, play, &players[job][r]);
        }
    }
    int64_t until = clock_now_ns() + TEST_LIMIT_NS;
    for (uint32_t block = 0; block < BLOCKS; block++)
        for (int job = 0; job < 2; job++) {
            job_turn_grant(b[job], block + 1);
            while (!all_done(b[job], block + 1) && clock_now_ns() < until) {
                uint64_t notices;
                if (read(status_table_notify_fd(b[job]), &notices, sizeof notices) < 0) clock_sleep_ns(20000);
            }
            assert_true(all_done(b[job], block + 1));
            assert_false(all_done(b[job], block + 2));
        }
    for (int job = 0; job < 2; job++) {
        for (int r = 0; r < RANKS; r++) pthread_join(players[job][r].thread, NULL);
        status_table_close(&b[job]);
    }
    assert_false(together);
}

static void a_parked_rank_says_so_and_uses_no_processor(void **state)
{
    (void)state;
    status_table *b;
    assert_ok(status_table_create(TOKEN, 1, &b));
    job_turn_grant(b, 0);
    atomic_int running[2] = {0};
    atomic_bool together = false;
    player p = {.b = b, .blocks = 1, .running = running, .together = &together};
    pthread_create(&p.thread, NULL, play, &p);
    rank_status s = {0};
    for (int64_t until = clock_now_ns() + TEST_LIMIT_NS; s.state != RANK_SLEEPING && clock_now_ns() < until;)
        status_table_read(b, 0, &s);
    assert_int_equal(s.state, RANK_SLEEPING);
    assert_int_equal(s.operation, RANK_PARKED);
    clock_sleep_ns(300 * NS_PER_MS);
    job_turn_grant(b, UINT32_MAX);
    pthread_join(p.thread, NULL);
    status_table_read(b, 0, &s);
    assert_int_equal(s.state, RANK_RUNNING);
    assert_int_equal(s.operation, RANK_START);
    assert_true(p.cpu_ns < 30 * NS_PER_MS);
    status_table_close(&b);
}

static void without_turns_every_block_is_granted(void **state)
{
    (void)state;
    status_table *b;
    assert_ok(status_table_create(TOKEN, 1, &b));
    job_turn_wait(b, 0, 0);
    job_turn_wait(b, 0, 1000000);
    status_table_close(&b);
}

static status_table *contested;

static void *claim(void *rank)
{
    char text[64];
    int r = (int)(intptr_t)rank;
    snprintf(text, sizeof text, "I am %d", r);
    return job_fail(contested, r, STATUS_DATA, text) ? rank : (void *)-1;
}

static void only_the_first_failure_is_kept(void **state)
{
    (void)state;
    enum { RANKS = 4 };
    job_failure f;
    assert_ok(status_table_create(TOKEN, RANKS, &contested));
    assert_false(job_first_failure(contested, &f));
    for (int r = 0; r < RANKS; r++) rank_slot_begin(status_table_slot(contested, r), r);
    for (int r = 0; r < RANKS; r++) rank_slot_step(status_table_slot(contested, r), 100 + r, 1);
    pthread_t threads[RANKS];
    intptr_t winner = -1;
    for (intptr_t r = 0; r < RANKS; r++) pthread_create(&threads[r], NULL, claim, (void *)r);
    for (int r = 0; r < RANKS; r++) {
        void *result;
        pthread_join(threads[r], &result);
        if ((intptr_t)result < 0) continue;
        assert_int_equal(winner, -1);
        winner = (intptr_t)result;
    }
    assert_true(job_first_failure(contested, &f));
    char text[64];
    snprintf(text, sizeof text, "I am %d", (int)winner);
    assert_string_equal(f.text, text);
    assert_int_equal(f.code, STATUS_DATA);
    assert_int_equal(f.where.rank, winner);
    assert_int_equal(f.where.step, 100 + winner);
    status_table_close(&contested);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            another_process_sees_the_table_and_only_the_right_one_is_attached), /* forks, so it comes first */
        cmocka_unit_test(a_cell_is_one_cache_line_and_says_what_was_written),
        cmocka_unit_test(a_status_reads_like_a_sentence),
        cmocka_unit_test(a_rank_is_behind_by_what_it_has_enqueued_then_started_then_completed),
        cmocka_unit_test(all_ranks_stop_after_the_same_step),
        cmocka_unit_test(no_rank_begins_a_step_between_hold_and_decide),
        cmocka_unit_test(a_rank_that_waits_for_nobody_stops_before_its_next_step),
        cmocka_unit_test(progress_of_other_members_is_seen),
        cmocka_unit_test(granted_blocks_alternate_between_jobs),
        cmocka_unit_test(a_parked_rank_says_so_and_uses_no_processor),
        cmocka_unit_test(without_turns_every_block_is_granted),
        cmocka_unit_test(only_the_first_failure_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
