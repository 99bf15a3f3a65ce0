/* Runs the collectives of a group of ranks in virtual time. The collectives of a group run one after another,
 * as NCCL's collectives on a stream do.
 *
 * A member joins the next call of the group. When the last member has joined, data begin to move as one flow
 * over all links of the group's rings (rings.h). The rate of the flow is at most the rate that NCCL's model
 * predicts for the protocol that NCCL chooses (nccl.h). It is lower if other flows use the same links. After
 * the flow has ended, the call lasts for the latency that the model predicts. Therefore a call that runs
 * alone takes exactly the time that the model predicts. All members end a call at the same time. An
 * all-reduce whose algorithm is not ring consists of one flow per phase (algorithms.h). */
#ifndef COMMON_SIM_GROUP_H
#define COMMON_SIM_GROUP_H

#include "common/sim/algorithms.h"
#include "common/sim/simulation.h"

/* Functions that notify a member. They are called at the virtual time of the event. */
typedef struct sim_group_member {
    void (*moving)(void *context); /* called when all members have joined and data begin to move */
    /* called when the call has ended and the member may join the next call */
    void (*finished)(void *context);
    void *context;
} sim_group_member;

typedef struct sim_group {
    simulation *simulation;
    char name[64];
    struct sim_group *next;
    int holders;
    sim_rings *rings;
    sim_event begin; /* fires when the last member has joined */
    sim_flow flow;
    int hops;
    sim_plan plans[SIM_ALGORITHM_COUNT]; /* a plan is opened at its first use */
    sim_algorithm algorithm;
    sim_algorithm ran; /* algorithm of the last call that has ended */
    sim_phase_cost costs[SIM_PHASES_MOST];
    int phase;
    struct sim_joined {
        sim_group_member told;
        bool joined;
        sim_time at;
    } * members; /* [count] */
    int *ranks;
    /* `count` is the number of members, `present` the number of members that are simulated, and `joined` the
     * number of members that have joined the next call. */
    int count, present, joined;
    sim_collective kind;
    sim_time at; /* time at which the last member joined */
    int last;    /* member that joined at time `at`; if several members did, the first of these members */
    double bytes, sent;
    /* `calls` is the number of calls that have ended. `bytes_sent` is the number of bytes that every member
     * sent in these calls. */
    int64_t calls;
    double bytes_sent;
} sim_group;

/* Opens the group of `ranks` [count], which are in ascending order. Ranks that open the same `name` share a
 * group, and the last sim_group_close() frees it. If `name` is NULL, the group is not shared. Ranks that are
 * not simulated (simulation_present()) never join. The group assumes that ranks that are not simulated join
 * at the same time as the simulated ranks. */
status sim_group_open(simulation *s, const char *name, const int *ranks, int count, sim_group **out);
void sim_group_close(sim_group **group);

/* Joins the group's next call as member `member`, at time `at`, or now if `at` has passed. `bytes` is the
 * size of the whole buffer. `algorithm` is SIM_RING unless `kind` is an all-reduce. Data begin to move when
 * the last member has joined. Returns STATUS_PROTOCOL if other members make a different call, or if the
 * member's last call has not ended. */
status sim_group_join(sim_group *g, int member, sim_time at, sim_collective kind, sim_algorithm algorithm,
                      double bytes, const sim_group_member *told);

/* Returns the number of messages that every member sent in the call that has just ended. */
int64_t sim_group_messages(const sim_group *g, sim_collective kind);

/* Returns the number of bytes that every member sends in a call with a buffer of `bytes` bytes. */
double sim_group_share(const sim_group *g, sim_collective kind, double bytes);

#endif
