/* What sanitizers want to know of a change of stacks. */
#ifndef COMMON_SIM_FIBER_SANITIZER_H
#define COMMON_SIM_FIBER_SANITIZER_H

#include <stddef.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#define FIBER_LEAVE(save, bottom, size) __sanitizer_start_switch_fiber(save, bottom, size)
#define FIBER_ENTER(save, bottom, size) __sanitizer_finish_switch_fiber(save, bottom, size)
#else
#define FIBER_LEAVE(save, bottom, size) ((void)(save), (void)(bottom), (void)(size))
#define FIBER_ENTER(save, bottom, size) ((void)(save), (void)(bottom), (void)(size))
#endif

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#define FIBER_THREAD_OPEN() __tsan_create_fiber(0)
#define FIBER_THREAD_SELF() __tsan_get_current_fiber()
#define FIBER_THREAD_SWITCH(to) __tsan_switch_to_fiber(to, 0)
#define FIBER_THREAD_CLOSE(f) __tsan_destroy_fiber(f)
#else
#define FIBER_THREAD_OPEN() NULL
#define FIBER_THREAD_SELF() NULL
#define FIBER_THREAD_SWITCH(to) ((void)(to))
#define FIBER_THREAD_CLOSE(f) ((void)(f))
#endif

#endif
