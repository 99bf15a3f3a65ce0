/* Errors planted into operations: every launch of a program that is linked with
 * --wrap=device_launch passes here. */
#ifndef TESTS_HARNESS_VERIFY_PLANTED_H
#define TESTS_HARNESS_VERIFY_PLANTED_H

typedef enum planted_error {
    PLANTED_NOTHING,
    PLANTED_NO_DECAY,          /* weight decay left out */
    PLANTED_MORE_DECAY,        /* 1.1 times the weight decay */
    PLANTED_GRADIENT_OF_LAYER, /* one layer's weight gradient 5% too large */
    PLANTED_GRADIENT_OF_ALL,   /* all gradients 5% too large, where the optimizer takes them */
    PLANTED_COLORS,            /* images in BGR instead of RGB */
    PLANTED_CHANNELS,          /* two channels of a BatchNorm's weight gradient exchanged */
    PLANTED_BIASED_VARIANCE,   /* the running variance moves towards the biased one */
} planted_error;

/* From now on, on all threads. Call it while no step runs. */
void planted_set(planted_error error);
/* How often the error was made since. */
int planted_count(void);

#endif
