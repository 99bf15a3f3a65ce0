#include "common/device/host/host.h"

#include "common/base/clock.h"
#include "common/base/processor.h"

#include <sched.h>
#include <stdatomic.h>

/* Time for which a wait spins before it sleeps. A wake-up costs about 50 us. But if ranks share cores, a
 * spinning thread may hold the core that the awaited thread needs. */
enum { SPIN_NS = 30000 };

int host_processors(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    return CPU_COUNT(&set);
}

void host_fence_reach(device_fence *base, uint64_t value)
{
    host_fence *f = (host_fence *)base;
    uint64_t now = atomic_load_explicit(&f->value, memory_order_relaxed);
    while (now < value && !atomic_compare_exchange_weak_explicit(&f->value, &now, value, memory_order_seq_cst,
                                                                 memory_order_relaxed)) {
    }
    doorbell_ring(&f->moved);
}

bool host_fence_reached(device_fence *base, uint64_t value)
{
    host_fence *f = (host_fence *)base;
    return atomic_load_explicit(&f->value, memory_order_acquire) >= value;
}

void host_fence_fail(device_fence *base, const error_record *error)
{
    host_fence *f = (host_fence *)base;
    if (atomic_exchange_explicit(&f->failing, true, memory_order_relaxed)) return;
    f->error = *error;
    atomic_store_explicit(&f->failed, true, memory_order_release);
    doorbell_ring(&f->moved);
}

status host_stream_signal(device_stream *s, device_fence *f, uint64_t value)
{
    host_fence_reach(f, value);
    return STATUS_OK;
}

/* Returns true if the wait has ended, because the fence has been reached or has failed. Sets *result to the
 * result of the wait. */
static bool settled(host_fence *f, uint64_t value, status *result)
{
    if (atomic_load_explicit(&f->value, memory_order_acquire) >= value) {
        *result = STATUS_OK;
        return true;
    }
    if (!atomic_load_explicit(&f->failed, memory_order_acquire)) return false;
    *result = error_adopt(&f->error);
    return true;
}

static status sleep_until_moved(host_fence *f, uint64_t value)
{
    status result;
    for (unsigned seen = doorbell_enter(&f->moved); !settled(f, value, &result);
         seen = doorbell_rings(&f->moved))
        doorbell_sleep(&f->moved, seen, CLOCK_NEVER);
    doorbell_leave(&f->moved);
    return result;
}

status host_stream_wait(device_stream *s, device_fence *base, uint64_t value)
{
    host_fence *f = (host_fence *)base;
    device *d = s->device;
    status result;
    if (d->idle) {
        while (!settled(f, value, &result)) {
            bool worked = false;
            TRY(d->idle(d->idle_context, &worked));
            if (!worked) processor_pause();
        }
        return result;
    }
    int64_t spin = d->config.world <= host_processors() ? SPIN_NS : 0;
    for (int64_t until = clock_now_ns() + spin; clock_now_ns() < until;) {
        for (int i = 0; i < 32; i++) {
            if (settled(f, value, &result)) return result;
            processor_pause();
        }
    }
    return sleep_until_moved(f, value);
}

status host_stream_synchronize(device_stream *s)
{
    return STATUS_OK; /* launches are synchronous, so no work is outstanding */
}

status host_mark(device_stream *s, int slot)
{
    ((host_stream *)s)->marks[slot] = clock_now_ns();
    return STATUS_OK;
}

int64_t host_mark_ns(device_stream *s, int slot)
{
    return ((host_stream *)s)->marks[slot];
}

int64_t host_now_ns(device *d)
{
    return clock_now_ns();
}
