#include "common/data/batch_source.h"

#include <assert.h>

status batch_source_next(batch_source *s, int64_t step, batch_view *out)
{
    assert(step >= 0);
    *out = (batch_view){0};
    return s->type->next(s, step, out);
}

void batch_source_return(batch_source *s, const batch_view *b)
{
    s->type->give_back(s, b);
}

bool batch_source_ready(batch_source *s, int64_t step)
{
    return s->type->ready(s, step);
}

bool batch_source_always_ready(batch_source *s, int64_t step)
{
    (void)s, (void)step;
    return true;
}

void batch_source_close(batch_source **s)
{
    if (!*s) return;
    (*s)->type->close(*s);
    *s = NULL;
}

batch_position batch_position_of_step(const batch_source *s, int64_t step)
{
    if (s->steps_per_epoch == 0) return (batch_position){.epoch_step = step};
    return (batch_position){step / s->steps_per_epoch, step % s->steps_per_epoch};
}

int64_t batch_step_of_position(const batch_source *s, batch_position position)
{
    return position.epoch * s->steps_per_epoch + position.epoch_step;
}
