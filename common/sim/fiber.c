#undef _FORTIFY_SOURCE /* The fortified longjmp() refuses to switch stacks. */
#include "common/sim/fiber.h"

#include "common/base/log.h"

#include <setjmp.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

/* The following functions report a switch of stacks to the sanitizers. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#define FIBER_LEAVE(save, bottom, size) __sanitizer_start_switch_fiber(save, bottom, size)
#define FIBER_ENTER(save, bottom, size) __sanitizer_finish_switch_fiber(save, bottom, size)
#else
#define FIBER_LEAVE(save, bottom, size) ((void)(save), (void)(bottom), (void)(size))
#define FIBER_ENTER(save, bottom, size) ((void)(save), (void)(bottom), (void)(size))
#endif

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#define FIBER_THREAD_OPEN() __tsan_create_fiber(0)
#define FIBER_THREAD_SELF() __tsan_get_current_fiber()
#define FIBER_THREAD_SWITCH(to) __tsan_switch_to_fiber(to, 0)
#define FIBER_THREAD_CLOSE(f) __tsan_destroy_fiber(f)
#else
#define FIBER_THREAD_OPEN() NULL
#define FIBER_THREAD_SELF() NULL
#define FIBER_THREAD_SWITCH(to) ((void)(to))
#define FIBER_THREAD_CLOSE(f) ((void)(f))
#endif

/* The point at which a fiber or its caller continues after a switch of stacks. longjmp() switches stacks
 * without a system call, but sanitizers support only swapcontext(). */
typedef struct place {
    ucontext_t context;
    jmp_buf jump;
    bool left; /* true if the code continues at `jump`, false if it continues at `context` */
} place;

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
static void go(place *from, place *to)
{
    swapcontext(&from->context, &to->context);
}
#else
static void go(place *from, place *to)
{
    from->left = true;
    if (_setjmp(from->jump) != 0) return;
    if (to->left) _longjmp(to->jump, 1);
    setcontext(&to->context);
}
#endif

enum {
    /* Size of a stack in bytes of address space. A page of the stack uses no memory before its first
     * access. */
    STACK_BYTES = 1 << 20,
    /* Largest number of fibers whose stacks have a guard page. Each of these stacks needs two mappings, and a
     * process may have 65,530 mappings. */
    MOST_GUARDED = 16000
};

static atomic_int open_fibers;

typedef struct sim_fiber {
    status (*main)(void *context);
    void *context;
    place self, caller;
    void *stack;
    const void *caller_bottom; /* the fields from here to `caller_thread` are used only with sanitizers */
    size_t caller_size;
    void *own_fake, *caller_fake;
    void *thread, *caller_thread;
    error_record error, *caller_error; /* error records of the fiber and of its caller */
    status result;
    bool begun, running, done;
    bool stops; /* true if every wait returns STATUS_STOPPED */
} sim_fiber;

static void leave(sim_fiber *f)
{
    f->running = false;
    error_switch(f->caller_error);
    FIBER_LEAVE(f->done ? NULL : &f->own_fake, f->caller_bottom, f->caller_size);
    FIBER_THREAD_SWITCH(f->caller_thread);
    go(&f->self, &f->caller);
    FIBER_ENTER(f->own_fake, &f->caller_bottom, &f->caller_size);
    f->running = true;
}

/* makecontext() passes only ints, so the pointer is passed as two ints. */
static void enter(unsigned high, unsigned low)
{
    sim_fiber *f = (sim_fiber *)(((uintptr_t)high << 32) | low);
    FIBER_ENTER(NULL, &f->caller_bottom, &f->caller_size);
    f->begun = f->running = true;
    f->result = f->main(f->context);
    f->done = true;
    leave(f);
}

static void go_on(sim_fiber *f)
{
    f->caller_thread = FIBER_THREAD_SELF();
    f->caller_error = error_switch(&f->error);
    FIBER_LEAVE(&f->caller_fake, f->stack, STACK_BYTES);
    FIBER_THREAD_SWITCH(f->thread);
    go(&f->caller, &f->self);
    FIBER_ENTER(f->caller_fake, NULL, NULL);
}

static status resume(void *context)
{
    sim_fiber *f = context;
    if (!f->done) go_on(f);
    if (!f->done) return STATUS_AGAIN;
    return f->result == STATUS_OK ? STATUS_OK : error_adopt(&f->error);
}

static size_t guard_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* Maps a stack with a guard page below it. If a fiber overflows its stack, the guard page ends the process,
 * so the fiber cannot write to another fiber's stack. */
static status map_stack(sim_fiber *f)
{
    size_t guard = guard_bytes();
    int protection = PROT_READ | PROT_WRITE;
    char *low =
        mmap(NULL, guard + STACK_BYTES, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (low == MAP_FAILED) return fail_errno(STATUS_SYSTEM, "no memory for the stack of a virtual thread");
    f->stack = low + guard;
    int others = atomic_fetch_add(&open_fibers, 1);
    if (others == MOST_GUARDED) log_debug("from %d virtual threads on stacks have no guard pages", others);
    if (others < MOST_GUARDED && mprotect(low, guard, PROT_NONE) != 0)
        return fail_errno(STATUS_SYSTEM, "no guard page for the stack of a virtual thread");
    return STATUS_OK;
}

static void free_fiber(sim_fiber *f)
{
    if (f->stack) {
        munmap((char *)f->stack - guard_bytes(), guard_bytes() + STACK_BYTES);
        atomic_fetch_sub(&open_fibers, 1);
    }
    free(f);
}

status sim_fiber_open(sim_actor *a, status (*main)(void *context), void *context)
{
    sim_fiber *f = calloc(1, sizeof *f);
    if (!f) return fail(STATUS_SYSTEM, "no memory for a virtual thread");
    status rc = map_stack(f);
    if (rc != STATUS_OK) {
        free_fiber(f);
        return rc;
    }
    f->main = main;
    f->context = context;
    f->thread = FIBER_THREAD_OPEN();
    ucontext_t *begin = &f->self.context;
    getcontext(begin);
    begin->uc_stack.ss_sp = f->stack;
    begin->uc_stack.ss_size = STACK_BYTES;
    begin->uc_link = NULL;
    makecontext(begin, (void (*)(void))enter, 2, (unsigned)((uintptr_t)f >> 32), (unsigned)(uintptr_t)f);
    a->fiber = f;
    sim_actor_set_run(a, resume, f);
    return STATUS_OK;
}

static void unwind(sim_actor *a)
{
    a->fiber->stops = true;
    a->simulation->current = a;
    while (a->fiber->begun && !a->fiber->done) go_on(a->fiber);
    a->simulation->current = NULL;
}

void sim_fiber_close(sim_actor *a)
{
    sim_fiber *f = a->fiber;
    if (!f) return;
    unwind(a);
    a->fiber = NULL;
    FIBER_THREAD_CLOSE(f->thread);
    free_fiber(f);
}

bool sim_fiber_runs(const sim_actor *a)
{
    return a->fiber && a->fiber->running;
}

status sim_fiber_yield(sim_actor *a)
{
    if (!a->fiber->stops) leave(a->fiber);
    return a->fiber->stops ? fail(STATUS_STOPPED, "a virtual thread was stopped") : STATUS_OK;
}

status sim_fiber_catch_up(sim_actor *a)
{
    while (simulation_now(a->simulation) < a->time) {
        sim_actor_wake(a, a->time);
        TRY(sim_fiber_yield(a));
    }
    return STATUS_OK;
}
