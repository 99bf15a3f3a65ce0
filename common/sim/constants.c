#include "common/sim/constants.h"

#include <stddef.h>

#define ROW(NAME, name, unit, count, least, most, needed, meaning)                                           \
    [SIM_##NAME] = {name, unit, count, least, most, needed, meaning},
const sim_constant_info sim_constant_table[SIM_CONSTANT_COUNT] = {SIM_CONSTANT_LIST(ROW)};
#undef ROW

/* As many bytes each as the constant has values: their offsets are those of the values. */
#define FIELD(NAME, name, unit, count, least, most, needed, meaning) char NAME[count];
typedef struct layout {
    SIM_CONSTANT_LIST(FIELD)
} layout;
#undef FIELD

#define OFFSET(NAME, name, unit, count, least, most, needed, meaning)                                        \
    [SIM_##NAME] = (int)offsetof(layout, NAME),
const int sim_constant_offset[SIM_CONSTANT_COUNT] = {SIM_CONSTANT_LIST(OFFSET)};
#undef OFFSET
