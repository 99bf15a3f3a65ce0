/* The demonstrations of `harness collectives`, and three mistakes with groups. */
#ifndef HARNESS_COMMANDS_DEMONSTRATIONS_H
#define HARNESS_COMMANDS_DEMONSTRATIONS_H

#include "common/collectives/collective.h"

/* A rank that runs demonstrations. All ranks of `all`, the group of the whole world, run the same ones. */
typedef struct demonstrator {
    collective_world *world;
    collective_group *all;
    int rank, size;
} demonstrator;

/* Values that a rank passes. */
typedef enum passed_values { ONE, RANK_PLUS_ONE, RANK_AND_ELEMENT } passed_values;

typedef struct shown shown; /* Texts of a rank's line. */

typedef struct demonstration {
    const char *name, *title; /* Name on the command line, and what the demonstration shows in one line. */
    status (*run)(const struct demonstration *of, const demonstrator *d, shown *s);
    /* Arguments of run_call(): the call, and the number of elements, or 0 for one per rank. */
    collective_kind kind;
    reduce_op op;
    int64_t count;
    passed_values values;
} demonstration;

enum { DEMONSTRATIONS = 16 };
extern const demonstration demonstrations[DEMONSTRATIONS];

/* Runs a demonstration. Rank 0 prints its title, and a line per rank with the values before and after. */
status demonstrate(const demonstrator *d, const demonstration *of);

typedef enum group_mistake { NO_MISTAKE, MISTAKE_OUTSIDE, MISTAKE_ORDER, MISTAKE_MISSING } group_mistake;
/* Names, which end with NULL, and descriptions. Both are indexed by group_mistake. */
extern const char *const group_mistakes[], *const group_mistake_texts[];

/* Lets the last rank make the mistake. Fails on at least one rank, and names rank and group. */
status demonstrate_mistake(const demonstrator *d, group_mistake mistake);

#endif
