/* Collectives of a group of ranks in virtual time, one after another, as NCCL runs them on a stream.
 *
 * A member joins the group's next call when it has come to it. When the last has, data begin to move: one
 * flow over all links of the group's rings (rings.h), at most as fast as NCCL's model says for the protocol
 * that it chooses (nccl.h), slower where others use the same links; then the model's latency. Alone it takes
 * exactly the model's time. Between calls nothing is left over: all members end a call at the same time. An
 * all-reduce by another algorithm is a flow for each of its phases (algorithms.h). */
#ifndef COMMON_SIM_GROUP_H
#define COMMON_SIM_GROUP_H

#include "common/sim/algorithms.h"
#include "common/sim/simulation.h"

/* What a member is notified of, in virtual time as it happens. */
typedef struct sim_group_member {
    void (*moving)(void *context);   /* all have come: data begin to move */
    void (*finished)(void *context); /* the call is done; the member may join the next */
    void *context;
} sim_group_member;

typedef struct sim_group {
    simulation *simulation;
    char name[64];
    struct sim_group *next; /* of the simulation */
    int holders;
    sim_rings *rings;
    sim_event begin; /* when the last has come */
    sim_flow flow;
    int hops;                            /* that the flow has room for */
    sim_plan plans[SIM_ALGORITHM_COUNT]; /* opened as they are first used */
    sim_algorithm algorithm;             /* of the call that gathers or runs */
    sim_algorithm ran;                   /* by which the last call was made */
    sim_phase_cost costs[SIM_PHASES_MOST];
    int phase;
    struct sim_joined {
        sim_group_member told;
        bool joined; /* the call that runs or gathers, */
        sim_time at; /* when */
    } * members;     /* [count] */
    int *ranks;
    int count, present, joined; /* members; those that join; those that have */
    sim_collective kind;        /* of the call that gathers or runs */
    sim_time at;                /* when the last of those who joined comes */
    int last;                   /* that member, the first of those who come at that time */
    double bytes, sent;
    int64_t calls; /* that were done, and their bytes as every member sent them */
    double bytes_sent;
} sim_group;

/* The group of `ranks` [count], ascending. The first rank that asks for `name` opens it, the last that closes
 * it frees it; NULL: a group of its own. Members whose ranks are not present (simulation_present) never join:
 * they are taken to come with the others. */
status sim_group_open(simulation *s, const char *name, const int *ranks, int count, sim_group **out);
void sim_group_close(sim_group **group);

/* Member number `member` of the group comes to its next call at `at` (now, where that is later); `bytes` of
 * the whole buffer; SIM_RING but for all-reduces. Data begin to move when the last has come. STATUS_PROTOCOL:
 * the others make another call, or the member has not finished its last one. */
status sim_group_join(sim_group *g, int member, sim_time at, sim_collective kind, sim_algorithm algorithm,
                      double bytes, const sim_group_member *told);

/* Messages that every member has sent in the call that has just finished. */
int64_t sim_group_messages(const sim_group *g, sim_collective kind);

/* Bytes that every member sends in such a call. */
double sim_group_share(const sim_group *g, sim_collective kind, double bytes);

#endif
