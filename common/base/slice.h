/* A thread's time slice. */
#ifndef COMMON_BASE_SLICE_H
#define COMMON_BASE_SLICE_H

/* The calling thread works little and must not wait for a processor behind threads that compute: asks for
 * the shortest slices, in return for which it is let in at once. Its share of the processor stays what it
 * was. Needs no privilege; Linux before 6.12 has slices of one length only, and nothing changes there
 * (sched(7), sched_setattr(2); Stoica and Abdel-Wahab, "Earliest eligible virtual deadline first", 1995). */
void slice_ask_for_short(void);

#endif
