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

enum { DEMONSTRATIONS = 16 };

/* Name of a demonstration on the command line, and what it shows in one line. */
const char *demonstration_name(int number);
const char *demonstration_title(int number);

/* Runs a demonstration. Rank 0 prints its title, and a line per rank with the values before and after. */
status demonstrate(const demonstrator *d, int number);

typedef enum group_mistake { NO_MISTAKE, MISTAKE_OUTSIDE, MISTAKE_ORDER, MISTAKE_MISSING } group_mistake;
/* Names, which end with NULL, and descriptions. Both are indexed by group_mistake. */
extern const char *const group_mistakes[], *const group_mistake_texts[];

/* Lets the last rank make the mistake. Fails on at least one rank, and names rank and group. */
status demonstrate_mistake(const demonstrator *d, group_mistake mistake);

#endif
