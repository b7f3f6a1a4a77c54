/* An engine that does what a test has written down: see scripted.py.
 *
 * Outputs are the sum of all inputs and a number. It waits, fails and looks at its flag
 * as its script says.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

typedef uintptr_t Word;

typedef struct {
    const char *flag;
    _Bool (*must_end)(const char *flag); /* NULL: it looks at the flag itself */
    size_t count;   /* of elements */
    int parts;      /* computed one by one; the flag is looked at before each */
    int waits;      /* until it is 0 or the flag is raised */
    int fails_with; /* the status, if not 0, with nothing computed */
    int begun;
    int ended;
    int is_freed; /* set as the graph is: no run may see it */
    int stopped;  /* for one that does not look at a flag */
    float number;
    /* Of one that has tensors made. */
    int made;
    int unmade;
    int refuses; /* so many more, and then one; 0 for none */
    Word input;  /* the memory of the first one of the last run */
} Script;

typedef struct {
    Script *script;
    Word memory;
    Word type;
} Tensor;

enum { INTERRUPTED = 100, FREED = 77, MOST_LOOKS = 200000 };

static int
is_raised(const Script *script)
{
    if (!script->flag)
        return __atomic_load_n(&script->stopped, __ATOMIC_SEQ_CST);
    if (script->must_end)
        return script->must_end(script->flag);
    return __atomic_load_n(script->flag, __ATOMIC_RELAXED) != 0;
}

int
run_script(Word place, Word input_count, Word inputs, Word output_count, Word outputs)
{
    Script *script = (Script *)place;
    const float **in = (const float **)inputs;
    float **out = (float **)outputs;
    struct timespec moment = {0, 20000};
    __atomic_add_fetch(&script->begun, 1, __ATOMIC_SEQ_CST);
    /* For seconds: a test that has failed by then ends as well. */
    for (int looks = 0; looks < MOST_LOOKS; looks++) {
        if (!__atomic_load_n(&script->waits, __ATOMIC_SEQ_CST) || is_raised(script))
            break;
        nanosleep(&moment, NULL);
    }
    int status = __atomic_load_n(&script->fails_with, __ATOMIC_SEQ_CST);
    if (status)
        return status;
    for (int part = 0; part < script->parts; part++) {
        size_t first = script->count * (size_t)part / (size_t)script->parts;
        size_t last = script->count * (size_t)(part + 1) / (size_t)script->parts;
        if (is_raised(script))
            return INTERRUPTED;
        for (size_t i = first; i < last; i++) {
            float sum = script->number;
            for (Word k = 0; k < input_count; k++)
                sum += in[k][i];
            for (Word k = 0; k < output_count; k++)
                out[k][i] = sum;
        }
    }
    if (__atomic_load_n(&script->is_freed, __ATOMIC_SEQ_CST))
        return FREED;
    __atomic_add_fetch(&script->ended, 1, __ATOMIC_SEQ_CST);
    return 0;
}

/* What it returns does not fit in an int. */
Word
run_stopped(Word place, Word input_count, Word inputs, Word output_count, Word outputs)
{
    int status = run_script(place, input_count, inputs, output_count, outputs);
    return status ? ((Word)status << 32) + 5 : 0;
}

/* A tensor is four bytes for each element, and of rank 1. */
Word
make_tensor(Word maker, Word memory, Word bytes, Word lengths, Word rank, Word type,
            Word cell)
{
    Script *script = (Script *)maker;
    if (script->refuses && !--script->refuses)
        return ((Word)3 << 32) + 5;
    if (rank != 1 || bytes != 4 * (Word)*(int64_t *)lengths)
        return ((Word)4 << 32) + 5;
    Tensor *tensor = malloc(sizeof *tensor);
    *tensor = (Tensor){script, memory, type};
    *(Tensor **)cell = tensor;
    script->made++;
    return 0;
}

void
unmake_tensor(Word tensor)
{
    ((Tensor *)tensor)->script->unmade++;
    free((Tensor *)tensor);
}

Word
run_tensors(Word place, Word input_count, Word inputs, Word output_count, Word outputs)
{
    Word in[8], out[8];
    for (Word i = 0; i < input_count; i++)
        in[i] = (*(Tensor **)(inputs + i * sizeof(Word)))->memory;
    for (Word i = 0; i < output_count; i++)
        out[i] = (*(Tensor **)(outputs + i * sizeof(Word)))->memory;
    ((Script *)place)->input = in[0];
    return run_stopped(place, input_count, (Word)in, output_count, (Word)out);
}

void
stop(Word place)
{
    __atomic_store_n(&((Script *)place)->stopped, 1, __ATOMIC_SEQ_CST);
}

void
go_on(Word place)
{
    __atomic_store_n(&((Script *)place)->stopped, 0, __ATOMIC_SEQ_CST);
}
