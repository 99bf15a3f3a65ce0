#include "common/base/clock.h"
#include "common/base/doorbell.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { TURNS = 2000 };

/* Two sides alternate: side 0 adds one to the sum when the sum is even, side 1 when it is odd. */
typedef struct table {
    doorbell bell[2];
    atomic_int sum;
} table;

static void take_turns(table *t, int side)
{
    for (int i = 0; i < TURNS; i++) {
        doorbell *own = &t->bell[side];
        for (unsigned seen = doorbell_enter(own); atomic_load(&t->sum) % 2 != side;
             seen = doorbell_rings(own))
            doorbell_sleep(own, seen, CLOCK_NEVER);
        doorbell_leave(own);
        atomic_fetch_add(&t->sum, 1);
        doorbell_ring(&t->bell[!side]);
    }
}

static void *second(void *t)
{
    take_turns(t, 1);
    return NULL;
}

static void no_ring_between_two_threads_is_lost(void **state)
{
    (void)state;
    static table t;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, second, &t), 0);
    take_turns(&t, 0);
    pthread_join(thread, NULL);
    assert_int_equal(atomic_load(&t.sum), 2 * TURNS);
}

static void no_ring_between_two_processes_is_lost(void **state)
{
    (void)state;
    table *t = mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(t, MAP_FAILED);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        take_turns(t, 1);
        _exit(0);
    }
    take_turns(t, 0);
    int code = -1;
    assert_int_equal(waitpid(child, &code, 0), child);
    assert_int_equal(code, 0);
    assert_int_equal(atomic_load(&t->sum), 2 * TURNS);
    munmap(t, sizeof *t);
}

static void a_sleep_ends_at_its_deadline(void **state)
{
    (void)state;
    doorbell bell = {0};
    unsigned seen = doorbell_enter(&bell);
    int64_t deadline = clock_now_ns() + 20 * NS_PER_MS;
    while (clock_now_ns() < deadline) doorbell_sleep(&bell, seen, deadline);
    doorbell_leave(&bell);
    assert_int_equal(doorbell_rings(&bell), seen);
    assert_false(doorbell_has_sleepers(&bell));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_ring_between_two_threads_is_lost),
        cmocka_unit_test(no_ring_between_two_processes_is_lost),
        cmocka_unit_test(a_sleep_ends_at_its_deadline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
