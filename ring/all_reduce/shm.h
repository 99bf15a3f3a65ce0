/* Internals of the shared-memory collectives, for this folder.
 *
 * A world maps the windows and the doorbell of every peer. A window is memory that a rank shares with its
 * peers. A group adds one segment per rank. The segment of a rank contains one slot for each call queue of
 * which the rank is a member. A call queue is an ordered sequence of calls: queue 0 of a group holds the
 * collectives, and each pair of ranks has one queue per direction for its sends.
 *
 * Only the owner writes a slot; the other members of the queue read the slot. The position in a slot counts
 * calls and the steps within a call, and never decreases. There is only one kind of wait: a rank waits until
 * the position of another member has reached a given value. Publishing a step has release semantics, so a
 * rank that sees the position may read everything that the member wrote before.
 *
 * A call begins when every member has written its description of the call to its slot and has published step
 * "arrived". After the arrival each member compares the descriptions of all members with its own. The
 * descriptions determine the mode, so all members choose the same mode. INLINE is possible only in two-shot,
 * and is chosen before a member publishes "arrived".
 *
 *   INLINE     the operands fit in the slot and were copied there before the arrival; no other wait follows
 *   IN_PLACE   all operands that peers access are in windows and have the same layout; there is one round
 *   STAGED     each round copies operands to a staging area in the slot, runs, and copies results out
 *
 * In each round the algorithm (two-shot, ring) determines which rank reads which elements. */
#ifndef RING_ALL_REDUCE_SHM_H
#define RING_ALL_REDUCE_SHM_H

#include "common/base/doorbell.h"
#include "common/collectives/collective_impl.h"
#include "common/net/shm.h"
#include "ring/all_reduce/channel.h"

#include <stdatomic.h>

enum {
    SHM_MAX_RANKS = COLLECTIVE_MOST_SHARED_RANKS, /* Largest world, because a mask has 64 bits. */
    SHM_STEP_BITS = 24,                           /* Bits of a position that count the steps of one call. */
    SHM_INLINE_BYTES = 32 << 10,
    SHM_STAGING_BYTES = 512 << 10,
    SHM_PAIR_INLINE_BYTES = 2 << 10,
    SHM_PAIR_STAGING_BYTES = 32 << 10,
    SHM_RING_SLICE_BYTES = 256 << 10, /* Largest size of a slice of the ring. */
    SHM_NO_WINDOW = -1,
};

/* ---- shared ----------------------------------------------------------------------------------- */

/* The doorbell that wakes a rank, and the error that the rank reports when it gives up. A world has one
 * shm_bell per rank. */
typedef struct shm_bell {
    _Alignas(64) doorbell bell;
    atomic_int pid;
    _Alignas(64) atomic_bool gave_up; /* Set once, after `code` and `message`. */
    int32_t code;
    char message[512];
} shm_bell;

typedef struct shm_place {
    int64_t offset;  /* Bytes from the start of the window. */
    uint64_t layout; /* piece_layout_hash() */
    int32_t window;  /* SHM_NO_WINDOW if peers cannot reach the operand. */
} shm_place;

typedef struct shm_description {
    int32_t kind, op, type, root, tag;
    int64_t count;
    shm_place in, out;
    int64_t arrived_ns; /* Time of the arrival on the clock that all ranks share. */
} shm_description;

/* The data that one member of a call queue writes. In the segment, two inline areas and a staging area follow
 * the slot. */
typedef struct shm_slot {
    _Alignas(64) _Atomic uint64_t position; /* sequence << SHM_STEP_BITS | steps */
    /* Descriptions of two calls: call n is at index n % 2. Two are enough, because a member is at most one
     * call ahead of another member. */
    _Alignas(64) shm_description calls[2];
} shm_slot;

/* ---- private ---------------------------------------------------------------------------------- */

typedef struct shm_queue shm_queue;

/* A collective algorithm, which is a state machine that runs the steps of one round. */
typedef struct shm_algorithm {
    uint32_t kinds; /* Mask of the collectives that the algorithm can run. Two-shot can run all of them. */
    /* Begins a round, and sets the first wait. Called when all members have exposed their operands. Two-shot
     * does all its work in this function, the ring does none. */
    void (*begin_round)(shm_queue *q);
    /* Does the next piece of work when the wait has ended. Returns true when the round is done. NULL if the
     * first wait ends the round. */
    bool (*advance)(shm_queue *q);
} shm_algorithm;

#define SHM_DECLARE(upper, lower, name) extern const shm_algorithm shm_algorithm_##lower;
COLLECTIVE_SHM_LIST(SHM_DECLARE)
#undef SHM_DECLARE

/* In memory, two inline areas of shm_queue.area_bytes each and a staging area follow the slot. */
typedef struct shm_member {
    int rank;
    shm_slot *slot;
} shm_member;

typedef enum shm_mode { SHM_INLINE, SHM_IN_PLACE, SHM_STAGED } shm_mode;
typedef enum shm_phase {
    SHM_IDLE,
    SHM_ARRIVING,
    SHM_PREPARED,
    SHM_RUNNING,
    /* The work is done, but the emulated link has not yet carried all bytes. */
    SHM_LEAVING
} shm_phase;

struct shm_queue {
    collective_queue base;
    int size, me;
    shm_member *members; /* [size] */
    int64_t area_bytes;  /* Bytes of one inline area. */
    /* Bytes of an inline area and of the staging area that may be used. */
    int64_t inline_bytes, staging_bytes;

    /* The call in progress, which has the number base.completed + 1. */
    shm_phase phase;
    shm_mode mode;
    const shm_algorithm *algorithm;
    const collective_call *call;
    piece_buffer in, out;
    uint64_t step;          /* Step published last. */
    uint64_t target, unmet; /* Awaited position, and mask of the members that have not reached it. */
    /* The transfer that must arrive before the wait ends. Used only if a link is emulated. */
    bool charged; /* Whether there is a transfer. */
    int64_t charge_bytes;
    bool charge_latency; /* Whether the transfer is a message, which takes the latency of the link. */
    bool was_there;      /* Whether the transfer began before this rank began to wait. */
    int64_t due_ns;      /* Arrival time. 0 if not known yet. */

    /* `round_at` is the first element of the current round, `round_count` is the number of its elements, and
     * `round_end` is the end of the last round. Elements are counted from the start of each part if the call
     * is cut into parts (collective_is_cut()), else from the start of the buffer. */
    int64_t round_at, round_count, round_end;
    /* The layout of the memory that the members expose is the same on all members. `exposed_in` and
     * `exposed_out` hold the address of this memory for each member. In mode IN_PLACE members expose their
     * buffers, otherwise their areas. */
    piece_layout in_layout, out_layout;
    char *exposed_in[SHM_MAX_RANKS], *exposed_out[SHM_MAX_RANKS];
    ring_channel ring;
};

typedef struct shm_group {
    collective_group base;
    shm_segment own;
    shm_segment *peers;  /* [size] */
    shm_member *members; /* Members of all queues. */
} shm_group;

typedef struct shm_world {
    collective_world base; /* base.seen is the last value that was read from this rank's doorbell. */
    collective_window windows[COLLECTIVE_MAX_WINDOWS];
    shm_segment bell_segment;
    /* [world * (1 + window_count)] For each rank, the segment of its bell and then its windows. */
    shm_segment *peers;
    shm_bell *bells[SHM_MAX_RANKS];
    /* A pidfd for each rank, or -1 if the rank is in the same process or pidfds are not available. */
    int death_fds[SHM_MAX_RANKS];
    int64_t checked_ns; /* Time of the last check of the peers. */
    net_adapter adapter;
} shm_world;

/* shm.c */
/* Returns the algorithm of a call. Every rank makes the same choice. */
const shm_algorithm *shm_choose_algorithm(const shm_queue *q, const collective_call *call);
void shm_ring_bell(shm_world *world, int rank);
/* Returns STATUS_PEER if an awaited member has given up or is dead. */
status shm_check_peers(shm_world *world, shm_queue *q);

/* queue.c */
status shm_queue_post(collective_queue *queue);
status shm_queue_progress(collective_world *world, int64_t now_ns, int64_t *deadline_ns, bool *worked);

/* Returns true if all awaited members have reached the target. Removes the members that have reached the
 * target from q->unmet. */
bool shm_queue_may_advance(shm_queue *q);

/* Publishes the next steps and wakes the members in `whom` (a mask). */
void shm_publish(shm_queue *q, int64_t steps, uint64_t whom);
/* Makes the call wait until the members in `whom` have published `step` steps of the call. */
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

/* Returns a member's description of the current call. */
static inline shm_description *shm_description_of(const shm_queue *q, int member)
{
    return &q->members[member].slot->calls[(q->base.completed + 1) & 1];
}

/* link.c: an emulated link. A wait does not end before the link has carried the awaited bytes. */
static inline bool shm_link_is_emulated(const shm_queue *q)
{
    return q->size > 1 && net_link_is_emulated(&shm_world_of(q)->adapter.link);
}
/* Makes the current wait last until the link has carried `bytes`. `own_message` adds the latency of a
 * message. If `follows` is true and the bytes are available now, the link carries them directly after earlier
 * bytes of the call. */
void shm_charge(shm_queue *q, int64_t bytes, bool own_message, bool follows);
/* Returns true if the link has carried the awaited bytes. Called when the awaited members have reached the
 * position. */
bool shm_is_due(shm_queue *q, int64_t now_ns);
/* Called when the work of a call is done. The call then waits until the emulated link would have carried all
 * bytes of the call in one transfer. The transfer begins at `arrived_ns`, when the last member has joined the
 * call, or later if the link is busy. Used if the steps of the call have not been charged. */
void shm_charge_call(shm_queue *q, int64_t arrived_ns);

/* operands.c: how a call exposes its operands to the peers, and the rounds and copies of the call. */
shm_description shm_describe(const shm_queue *q, int64_t now_ns);
bool shm_fits_inline(const shm_queue *q);
/* Returns true if all operands that peers access are in windows and have the same layout. All ranks get the
 * same result. */
bool shm_can_be_in_place(const shm_queue *q);
/* Sets the first round, and the addresses that the members expose in mode q->mode. */
void shm_first_round(shm_queue *q);
/* Sets the next round. Returns false if there is none. */
bool shm_next_round(shm_queue *q);
/* Returns the number of elements of this round, which begin at round_at. Counts the elements of part `part`
 * if the call is cut into parts, else all elements. */
int64_t shm_round_part(const shm_queue *q, int part);
/* Returns the index of element `at` of part `part` in the exposed operand of a member. `part` is 0 if the
 * call is not cut into parts. */
int64_t shm_exposed_index(const shm_queue *q, int part, int64_t at);
piece_buffer shm_exposed_in(const shm_queue *q, int member);
piece_buffer shm_exposed_out(const shm_queue *q, int member);
/* Returns the first element of the share of `rank` when `count` elements are divided among the ranks at cache
 * lines. */
static inline int64_t shm_share_begin(const shm_queue *q, int64_t count, int rank)
{
    int64_t line = 64 / dtype_size(q->call->type);
    if (rank >= q->size) return count;
    return (int64_t)((__int128)count * rank / q->size) / line * line;
}
/* Copies the elements that this rank would send to itself from `in` to `out`. */
void shm_place_own_part(shm_queue *q);
/* Copies this rank's elements of the round from `in` to its area. Used only in modes STAGED and INLINE. */
void shm_copy_in(shm_queue *q);
/* Copies the results of the round from this rank's area to `out`, except elements that shm_place_own_part()
 * has copied. */
void shm_copy_out(shm_queue *q);
/* Copies the elements that `out` needs from the operands of the peers. Used only for collectives that do not
 * reduce. */
void shm_fetch(shm_queue *q);

/* Returns the bytes and messages that a call moves between this rank and its peers. Bytes that a peer writes
 * into this rank's memory count as received. */
collective_traffic shm_call_moved(const shm_queue *q);

/* two_shot.c */
void shm_run_inline(shm_queue *q);

#endif
