/* The shared-memory implementation from inside. For this folder only.
 *
 * A world maps every peer's windows and its doorbell. A group adds one segment per rank with that rank's
 * slots: one for each call queue that it is a member of. A call queue is an ordered sequence of calls among
 * its members: queue 0 of a group holds the collectives, one queue per pair holds what one rank sends to
 * another.
 *
 * A slot is written by its owner and read by the queue's other members. Its position counts calls and the
 * steps within them; it only grows, and "wait until a member's position has reached p" is the only way in
 * which ranks wait for each other. A member publishes a step with a release of everything that it wrote
 * before; whoever sees it may read that.
 *
 * A call begins when every member has described it in its slot and has published step "arrived". When all
 * have arrived, each compares the descriptions with its own. All choose the same mode: INLINE is chosen
 * before the arrival, and only by two-shot; the rest from the descriptions.
 *
 *   INLINE     the operands fit in the slot and were copied there before the arrival: no further wait
 *   IN_PLACE   all operands that peers touch are in windows with the same layout: one round over everything
 *   STAGED     rounds over a staging area in the slot: copy in, run, copy out
 *
 * Within a round the algorithm (two-shot, ring) determines which rank reads what. */
#ifndef COMMON_COLLECTIVES_SHM_SHM_INTERNAL_H
#define COMMON_COLLECTIVES_SHM_SHM_INTERNAL_H

#include "common/base/doorbell.h"
#include "common/collectives/collective_impl.h"
#include "common/collectives/shm/ring_channel.h"
#include "common/net/shm.h"

#include <stdatomic.h>

enum {
    SHM_MAX_RANKS = COLLECTIVE_MOST_SHARED_RANKS, /* of a world: a mask is 64 bits */
    SHM_STEP_BITS = 24,                           /* of a position: steps of one call */
    SHM_INLINE_BYTES = 32 << 10,
    SHM_STAGING_BYTES = 512 << 10,
    SHM_PAIR_INLINE_BYTES = 2 << 10,
    SHM_PAIR_STAGING_BYTES = 32 << 10,
    SHM_RING_SLICE_BYTES = 256 << 10, /* what a ring hands on at a time */
    SHM_NO_WINDOW = -1,
};

/* ---- shared ----------------------------------------------------------------------------------- */

/* How a rank is woken, and how it reports that it gives up: one per rank and world. */
typedef struct shm_bell {
    _Alignas(64) doorbell bell;
    atomic_int pid;
    _Alignas(64) atomic_bool gave_up; /* set once, after `code` and `message` */
    int32_t code;
    char message[512];
} shm_bell;

/* Where an operand is. */
typedef struct shm_place {
    int64_t offset;  /* bytes into the window */
    uint64_t layout; /* piece_layout_hash() */
    int32_t window;  /* SHM_NO_WINDOW: peers cannot reach it */
} shm_place;

typedef struct shm_description {
    int32_t kind, op, type, root, tag;
    int64_t count;
    shm_place in, out;
    int64_t arrived_ns; /* all ranks share the machine's clock */
} shm_description;

/* A member's part of a call queue, followed by two inline areas and a staging area. */
typedef struct shm_slot {
    _Alignas(64) _Atomic uint64_t position; /* sequence << SHM_STEP_BITS | steps */
    _Alignas(64) shm_description calls[2];  /* of sequence % 2: a member is at most one call ahead */
} shm_slot;

/* ---- private ---------------------------------------------------------------------------------- */

typedef struct shm_queue shm_queue;

/* What ring, two-shot and others have in common: a state machine over a round. */
typedef struct shm_algorithm {
    bool (*serves)(collective_kind kind); /* two-shot runs the other kinds */
    /* All members' operands are exposed: does the first piece of work and sets what to wait for. */
    void (*begin_round)(shm_queue *q);
    /* What was waited for has happened: does the next piece. Returns true when the round is done. */
    bool (*advance)(shm_queue *q);
    /* Staged: copies results from the rank's own area to its `out`. */
    void (*copy_out)(shm_queue *q);
} shm_algorithm;

#define SHM_DECLARE(upper, lower, name) extern const shm_algorithm shm_algorithm_##lower;
COLLECTIVE_SHM_LIST(SHM_DECLARE)
#undef SHM_DECLARE

typedef struct shm_member {
    int rank; /* of the world */
    shm_slot *slot;
    char *inline_area; /* two */
    char *staging;
} shm_member;

typedef enum shm_mode { SHM_INLINE, SHM_IN_PLACE, SHM_STAGED } shm_mode;
typedef enum shm_phase {
    SHM_IDLE,
    SHM_ARRIVING,
    SHM_PREPARED,
    SHM_RUNNING,
    SHM_LEAVING /* only over an emulated link: everything is done, but would not have arrived yet */
} shm_phase;

struct shm_queue {
    collective_queue base;
    int size, me;
    shm_member *members;                 /* [size] */
    int64_t area_bytes;                  /* of an inline area */
    int64_t inline_bytes, staging_bytes; /* as much of the areas as is used */

    /* The call in progress: completed + 1. */
    shm_phase phase;
    shm_mode mode;
    const shm_algorithm *algorithm;
    const collective_call *call;
    piece_buffer in, out;   /* this rank's buffers */
    uint64_t step;          /* published last */
    uint64_t target, unmet; /* position waited for, and the members that have not reached it */
    /* Over an emulated link: a transfer that must also have arrived. */
    bool charged; /* there is one */
    int64_t charge_bytes;
    bool charge_latency; /* it is a message of its own */
    bool was_there;      /* it had begun before this rank began to wait */
    int64_t due_ns;      /* when it has arrived; 0: not known yet */

    /* The round: elements [at, at + count) of the whole, or of every part (collective_is_cut). */
    int64_t round_at, round_count, round_end;
    /* What members expose, with the same layout on all; staged and inline: the areas. */
    piece_layout in_layout, out_layout;
    char *exposed_in[SHM_MAX_RANKS], *exposed_out[SHM_MAX_RANKS];
    ring_channel ring; /* where a ring runs the call */
};

typedef struct shm_group {
    collective_group base;
    shm_segment own;
    shm_segment *peers;  /* [size] */
    shm_member *members; /* of all queues */
} shm_group;

typedef struct shm_world {
    collective_world base; /* `seen` is the own bell's word */
    collective_window windows[COLLECTIVE_MAX_WINDOWS];
    shm_segment bell_segment;
    shm_segment *peers; /* [world * (1 + window_count)]: bell, windows */
    shm_bell *bells[SHM_MAX_RANKS];
    int death_fds[SHM_MAX_RANKS]; /* pidfds; -1: same process or not available */
    int64_t checked_ns;           /* when the peers were last checked */
    net_adapter adapter;          /* where a link is emulated */
} shm_world;

/* shm.c */
/* The algorithm of a call; every rank makes the same choice. */
const shm_algorithm *shm_choose_algorithm(const shm_queue *q, const collective_call *call);
/* Rings the bell of a rank if it sleeps. */
void shm_ring_bell(shm_world *world, int rank);
/* STATUS_PEER if a member that the queue waits for has given up or is dead. */
status shm_check_peers(shm_world *world, shm_queue *q);

/* shm_queue.c */
status shm_queue_post(collective_queue *queue);
status shm_queue_progress(collective_world *world, int64_t now_ns, int64_t *deadline_ns, bool *worked);

/* Whether all members that the queue waits for have reached its target; forgets those that have. */
bool shm_queue_may_advance(shm_queue *q);

/* Publishes the next steps and rings the members in `whom` (a mask). */
void shm_publish(shm_queue *q, int64_t steps, uint64_t whom);
/* Waits for the members in `whom` to have published `step` steps of the present call. */
void shm_await(shm_queue *q, uint64_t step, uint64_t whom);
static inline uint64_t shm_bit(int member)
{
    return UINT64_C(1) << member;
}
static inline uint64_t shm_everyone(const shm_queue *q)
{
    uint64_t all = q->size == 64 ? UINT64_MAX : (UINT64_C(1) << q->size) - 1;
    return all & ~(UINT64_C(1) << q->me);
}

static inline shm_world *shm_world_of(const shm_queue *q)
{
    return (shm_world *)q->base.group->world;
}

/* shm_link.c: an emulated link: what is waited for has arrived only when the link has carried it too. */
static inline bool shm_link_is_emulated(const shm_queue *q)
{
    return q->size > 1 && net_link_is_emulated(&shm_world_of(q)->adapter.link);
}
/* Announces that `bytes` arrive with what is awaited: whether as a message of their own, and whether they
 * follow others of the same call. */
void shm_charge(shm_queue *q, int64_t bytes, bool own_message, bool follows);
/* What is waited for has happened: whether the link has carried it. */
bool shm_is_due(shm_queue *q, int64_t now_ns);
/* The same for a finished call as a whole, whose steps were not charged; all had arrived at `arrived_ns`. */
void shm_charge_call(shm_queue *q, int64_t arrived_ns);

/* shm_operands.c: what a call exposes to its peers, which part of it in each round, and what is copied. */
shm_description shm_describe(const shm_queue *q, int64_t now_ns);
bool shm_fits_inline(const shm_queue *q);
/* Whether all that peers touch is in windows with the same layout: the same result on every rank. */
bool shm_can_be_in_place(const shm_queue *q);
/* Sets the round and what is exposed, by q->mode. */
void shm_first_round(shm_queue *q);
/* False: there is none. */
bool shm_next_round(shm_queue *q);
/* Elements of the call that are in this round: of the whole, or, where every rank has a part, of part
 * `part`, counted from round_at in both cases. */
int64_t shm_round_part(const shm_queue *q, int part);
/* Where element `at` of part `part` (of the whole: part 0) is in the exposed operand of `member`. */
int64_t shm_exposed_index(const shm_queue *q, int part, int64_t at);
piece_buffer shm_exposed_in(const shm_queue *q, int member);
piece_buffer shm_exposed_out(const shm_queue *q, int member);
/* Share `rank` of `count` elements, cut on cache lines: its begin. */
static inline int64_t shm_share_begin(const shm_queue *q, int64_t count, int rank)
{
    int64_t line = 64 / dtype_size(q->call->type);
    if (rank >= q->size) return count;
    return (int64_t)((__int128)count * rank / q->size) / line * line;
}
/* Copies from `in` to `out` what this rank needs from no peer. */
void shm_place_own_part(shm_queue *q);
/* Staged and inline: copies this rank's part of the round from `in` to its own area. */
void shm_copy_in(shm_queue *q);
/* Copies the results of the round from the own area to `out`, but not what was placed there before. */
void shm_copy_out(shm_queue *q);
/* Copies from the peers what this rank's `out` needs, for kinds that do not reduce. */
void shm_fetch(shm_queue *q);

/* What a call moves between this rank and its peers, whichever rank copies: what a peer writes into our
 * memory is received. Elements. */
typedef struct shm_moved {
    int64_t sent, received, messages_sent, messages_received;
} shm_moved;
shm_moved shm_call_moved(const shm_queue *q);

/* shm_two_shot.c */
void shm_run_inline(shm_queue *q);

#endif
