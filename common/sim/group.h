/* Collectives of a group of ranks in virtual time, one after another, as NCCL runs them on a stream.
 *
 * A member joins the next call of the group. When the last member has joined, data begin to move as one flow
 * over all links of the group's rings (rings.h). The rate is at most the rate that NCCL's model predicts for
 * the protocol that NCCL chooses (nccl.h), and lower if other flows use the same links. After the flow, the
 * latency of the model passes. Therefore a call that runs alone takes exactly the time of the model. All
 * members end a call at the same time. An all-reduce with another algorithm than ring is one flow per phase
 * (algorithms.h). */
#ifndef COMMON_SIM_GROUP_H
#define COMMON_SIM_GROUP_H

#include "common/sim/algorithms.h"
#include "common/sim/simulation.h"

/* Functions that notify a member. They are called at the virtual time of the event. */
typedef struct sim_group_member {
    void (*moving)(void *context);   /* called when all members have joined and data begin to move */
    void (*finished)(void *context); /* the call is done, and the member may join the next call */
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
    /* Number of members, number of members that can join, and number of members that have joined. */
    int count, present, joined;
    sim_collective kind;
    sim_time at; /* latest of the times at which the members joined */
    int last;    /* member that joined at time `at`, or the first of them if there are several */
    double bytes, sent;
    /* number of calls that have ended, and number of bytes that every member sent in these calls */
    int64_t calls;
    double bytes_sent;
} sim_group;

/* Opens the group of `ranks` [count], in ascending order. Ranks that open the same `name` share a group, and
 * the last sim_group_close() frees it. If `name` is NULL, the group is not shared. Ranks that are not
 * simulated (simulation_present()) never join. The group assumes that these ranks arrive together with the
 * simulated ranks. */
status sim_group_open(simulation *s, const char *name, const int *ranks, int count, sim_group **out);
void sim_group_close(sim_group **group);

/* Lets member `member` join the group's next call at time `at`, or now if `at` has passed. `bytes` is the
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
