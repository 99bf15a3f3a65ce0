/* What an implementation provides. For implementers of collectives only: everyone else includes
 * collective.h, whose functions check their arguments and call these.
 *
 * An implementation is one const struct, every slot set; it embeds the structs below first in its own. */
#ifndef RING_COLLECTIVES_COLLECTIVE_IMPL_H
#define RING_COLLECTIVES_COLLECTIVE_IMPL_H

#include "common/base/clock.h"
#include "ring/collectives/collective.h"

typedef struct collective_type {
    const char *name;
    status (*open)(const collective_config *config, collective_world **out);
    void (*close)(collective_world *world);
    status (*group_open)(collective_world *world, const char *name, const int *ranks, int count,
                         collective_group **out);
    void (*group_close)(collective_group *group);
    status (*post)(collective_group *group, const collective_call *call, collective_ticket *out);
    bool (*done)(const collective_group *group, collective_ticket ticket);
    collective_times (*times)(const collective_group *group, collective_ticket ticket);
    status (*progress)(collective_world *world, int64_t now_ns, int64_t *deadline_ns, bool *worked);
    void (*wait)(collective_world *world, int64_t deadline_ns);
    void (*wake)(collective_world *world);
    void (*abort)(collective_world *world, const error_record *why);
} collective_type;

enum { COLLECTIVE_NAME_MAX = 32 };

struct collective_world {
    const collective_type *type;
    collective_config config; /* name is `name`; windows is only for open */
    char name[COLLECTIVE_NAME_MAX];
    collective_traffic traffic;
    error_record failure; /* code STATUS_OK: none */
};

struct collective_group {
    collective_world *world;
    char name[COLLECTIVE_NAME_MAX];
    int rank, size; /* of this rank in the group */
};

/* The window that holds [data, data + bytes) and the offset in it; -1: none does. */
int collective_find_window(const collective_window *windows, int count, const void *data, int64_t bytes,
                           int64_t *offset);

static inline int64_t collective_deadline(int64_t since_ns, int64_t timeout_ns)
{
    return timeout_ns < CLOCK_NEVER - since_ns ? since_ns + timeout_ns : CLOCK_NEVER;
}

/* Every rank has a part of the elements of such a call. */
bool collective_is_cut(collective_kind kind);

extern const collective_type collective_ring, collective_two_shot, collective_auto, collective_mpi, collective_sim,
    collective_nccl;

#endif
