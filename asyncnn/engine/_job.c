/* Runs on graphs of engines, compiled; job.py has the protocol and its reasons.
 *
 * Everything that Python has to say is said before and after: a run checks its arrays,
 * takes the turns of its graphs and finds where the engine reads and writes; then it
 * gives up the interpreter lock for all segments at once. In between it comes back for
 * the lock if a segment ends early.
 */

#define _GNU_SOURCE
#include "../_native.h"
#include <structmember.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

/* Of job.py and of devices/executable.py, whose tests compare. */
enum {
    WORDS = 8,
    MOST_BINDINGS = 32,
    COPIED_BYTES = 1 << 15,
    ALIGNMENT = 64,
    TAIL_BYTES = 64,
    MOST_ATTEMPTS = 4,
    MOST_INTERRUPTED = 4,
    FLAG_BYTES = 16,
    DEADLINE_AT = 8,
    MOST_LESSONS = 16,
};

enum { CLEAR, INTERRUPTED, ENDED }; /* what the byte of a flag says */

/* How a run ends; or, for who has the interpreter lock: the engine has ended early. */
enum { DONE, PAUSED, STOPPED, LATE, FAILED = -1, EARLY = -2 };

enum { FIXED = -1 };

enum { UNUSED, READ, WRITTEN }; /* an array of a run */

typedef uintptr_t Word;
typedef Word (*Function)(Word, Word, Word, Word, Word, Word, Word, Word);

/* An input or output of a graph. */
typedef struct {
    Py_ssize_t size;
    char format;
    char *memory; /* stands in for arrays that are not used in place; NULL until then */
    char *aligned;
    /* Of an engine that has tensors made: their lengths, rank and type, where it looks
     * for the tensor of a run, and the one over what stands in, 0 until then. */
    Word shape[3];
    Word *cell;
    Word standing;
} Slot;

/* The words of a call on a set of addresses, which its owner keeps. */
typedef struct {
    PyObject *owner;
    Word words[WORDS];
    Word *addresses;
} Binding;

/* Where an argument comes from: an array of each run, or fixed memory. */
typedef struct {
    Py_ssize_t port;
    Py_buffer fixed;
} Route;

typedef struct Segment Segment;

/* A segment of a job. */
typedef struct {
    Segment *segment;
    Route *routes;
    Word *places; /* the addresses of what is fixed */
} Step;

/* A segment in one run: the addresses that the engine is given, and the words. */
typedef struct {
    Word *places;
    Word words[WORDS];
    PyObject *owner;
} Call;

struct Segment {
    PyObject_HEAD
    Function function;
    /* Of an engine that does not ask for the flag: called with `word` as that is raised,
     * and as it is lowered. NULL for others. */
    Function stop;
    Function go_on;
    Word word;
    /* Of an engine that has a tensor made over each array, for a run: NULL for others,
     * which bind addresses. */
    Function make;
    Function unmake;
    Word maker;
    Word words[WORDS]; /* of each call */
    Word alignment;    /* of arrays that it may use where they lie */
    int forks;         /* in the child of a fork, tensors are the parent's */
    Py_buffer flag; /* .obj is NULL until it is initialised */
    Py_ssize_t inputs;
    Py_ssize_t count; /* of inputs and outputs */
    Slot *slots;
    Binding bindings[MOST_BINDINGS];
    int bound;
    int oldest;
    int latest;
    PyObject *acquire; /* names of what it is asked in each run, made once */
    PyObject *release;
    PyObject *closes;
    Step alone; /* for runs of this segment only: every argument is a port */
    Call own;
    char *are_used;
    Py_buffer *views;
};

typedef struct {
    PyObject_HEAD
    Py_ssize_t count;
    Step *steps;
    Py_ssize_t ports;
    char *are_used; /* by port */
    size_t size;    /* of what a run needs */
    void *spare;    /* the memory of a run that has ended */
} Job;

/* The fields of a run that are objects of Python's. */
#define OBJECTS(F) \
    F(_abort_status) F(_arrays) F(_control) F(_error) F(_executable) F(_execution) \
    F(_lessons) F(_options) F(_plan) F(_report) F(_request) F(_shapes) F(_workspace) \
    F(account) F(accounting) F(added_ns) F(charged_ns) F(client) F(cost) \
    F(deadline_ns) F(ends_anywhere) F(goes_native) F(has_plan) F(pause) \
    F(preemptions) F(priority) F(resumed_ns) F(should_inline) F(state) F(use)

#define AT(name) AT_##name,
enum { OBJECTS(AT) OBJECT_COUNT };

/* A run, as lanes and the end of most of them see it; `Run` has the rest. */
typedef struct {
    End end;
    PyObject *objects[OBJECT_COUNT]; /* by the numbers above; NULL until they are set */
    long long started_ns;
    long long ended_ns;
    long long computed_ns;
    long long cpu_ns;
    int threads;
    char is_plain; /* made by `again`: nothing is asked of it but its outputs */
} Fields;

/* A run: what stops it, and while it is under way all that it needs. */
typedef struct Control {
    PyObject_HEAD
    int stop;
    int pause;
    int may_pause;
    int interrupted; /* times in a row that the segment was, for a pause */
    int attempts;    /* times in a row that it has ended early without a reason */
    Segment *current;
    Py_ssize_t position;
    int64_t since_ns; /* the last boundary of a run with a deadline */
    Py_ssize_t part;  /* what runs since then, counted from 1; 0 for nothing yet */
    int64_t longest_ns;
    Py_ssize_t longest_part;
    /* Of a run that is under way; `job` is NULL else. */
    Job *job;
    PyObject *arrays;
    Py_buffer *views;
    Call *calls;
    Py_ssize_t ready;    /* calls that are */
    Py_ssize_t first;    /* the segment that is run in any case */
    int64_t deadline_ns; /* 0 for none */
    int64_t review_ns;   /* when it is to pause; 0 for never */
    bool was_asked;      /* before the first segment */
    int outcome;
    Word status; /* of an engine that has ended early */
    /* On a lane; the token is what the loop has offered. */
    PyObject *token;
    Fields *fields; /* of the run, if it is one */
    struct Control *below; /* in the stack of what has ended */
    int64_t started_ns;
    int64_t ended_ns;
    int64_t cpu_ns;
} Control;

/* Names that Python's objects are asked by, made once. */
#define NAMES(F) \
    F(requested) F(program) F(idle) F(pop) F(append) F(known_outputs) F(job) F(thread) \
    F(work) F(interrupt) F(pause) F(from_ns) F(threads) F(lanes_each) F(may_spread) \
    F(is_on) F(is_young) F(result) F(output_shapes) F(learn) F(_spread) F(_finish) F(_resolve) \
    F(_report_run) F(blanks) F(plan) F(anew) F(goes_native)

#define NAME(name) NAME_##name,
enum { NAMES(NAME) NAME_COUNT };

typedef struct {
    PyTypeObject *segment;
    PyTypeObject *control;
    PyTypeObject *port;
    PyTypeObject *lane;
    PyTypeObject *job;
    PyTypeObject *fields;
    PyObject *names[NAME_COUNT];
    PyObject *cpuexe; /* tags of logs */
    PyObject *execution;
    PyObject *none; /* ErrorStatus.NONE */
    PyObject *no_timing;
    PyObject *default_options;
} State;

#define load(place) __atomic_load_n(place, __ATOMIC_SEQ_CST)
#define store(place, value) __atomic_store_n(place, value, __ATOMIC_SEQ_CST)

/* ---- errors --------------------------------------------------------------------- */

/* Raise an error of asyncnn.hal.errors in the interpreter that runs. */
static void
refuse(const char *kind, const char *format, ...)
{
    PyObject *errors = PyImport_ImportModule("asyncnn.hal.errors"), *type = NULL;
    if (errors)
        type = PyObject_GetAttrString(errors, kind);
    if (type) {
        va_list values;
        va_start(values, format);
        PyErr_FormatV(type, format, values);
        va_end(values);
    }
    Py_XDECREF(type);
    Py_XDECREF(errors);
}

static void *
memory_of(size_t count, size_t size)
{
    void *memory = PyMem_Calloc(count ? count : 1, size);
    if (!memory)
        PyErr_NoMemory();
    return memory;
}

/* ---- flags ---------------------------------------------------------------------- */

/* The engine asks for the byte from a thread without the interpreter lock. */
static void
raise_flag(char *flag)
{
    char clear = CLEAR; /* not if it has ended for good */
    __atomic_compare_exchange_n(flag, &clear, INTERRUPTED, false, __ATOMIC_SEQ_CST,
                                __ATOMIC_SEQ_CST);
}

static char
flag_of(Segment *self)
{
    return load((char *)self->flag.buf);
}

/* Held while a flag changes of which an engine is notified: what that knows is what the
 * flag says, whoever comes between. A forked child has one of its own. */
static pthread_mutex_t stopping = PTHREAD_MUTEX_INITIALIZER;

static int forks; /* this process is so many generations from the first */

static void
begin_child(void)
{
    pthread_mutex_init(&stopping, NULL);
    forks++;
}

/* Have a graph end early, until its flag is lowered; for good if it is to end. */
static void
raise_of(Segment *self, char said)
{
    if (self->stop)
        pthread_mutex_lock(&stopping);
    if (said == ENDED)
        store((char *)self->flag.buf, ENDED);
    else
        raise_flag(self->flag.buf);
    if (self->stop) {
        self->stop(self->word, 0, 0, 0, 0, 0, 0, 0);
        pthread_mutex_unlock(&stopping);
    }
}

static void
lower_flag(Segment *self)
{
    if (flag_of(self) == CLEAR)
        return; /* whoever raises it from now on finds a run that is notified */
    if (self->stop)
        pthread_mutex_lock(&stopping);
    char raised = INTERRUPTED;
    bool is_lowered = __atomic_compare_exchange_n(
        (char *)self->flag.buf, &raised, CLEAR, false, __ATOMIC_SEQ_CST,
        __ATOMIC_SEQ_CST);
    if (self->stop) {
        if (is_lowered)
            self->go_on(self->word, 0, 0, 0, 0, 0, 0, 0);
        pthread_mutex_unlock(&stopping);
    }
}

#ifdef __APPLE__
#define STEADY CLOCK_UPTIME_RAW
#else
#define STEADY CLOCK_MONOTONIC
#endif

static int64_t
time_of(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* Return the time of time.monotonic_ns. */
static int64_t
now_ns(void)
{
    return time_of(STEADY);
}

static int64_t *
deadline_of(char *flag)
{
    return (int64_t *)(flag + DEADLINE_AT);
}

/* What an engine asks before each node: whether the run is to end. A deadline that has
 * passed raises the flag, so that it ends as one which was interrupted. */
static bool
must_end(char *flag)
{
    if (load(flag))
        return true;
    int64_t deadline_ns = load(deadline_of(flag));
    if (!deadline_ns || now_ns() < deadline_ns)
        return false;
    raise_flag(flag);
    return true;
}

/* ---- turns ---------------------------------------------------------------------- */

static bool
is_ready(Segment *self)
{
    if (self->flag.obj)
        return true;
    PyErr_SetString(PyExc_ValueError, "the segment was not initialised");
    return false;
}

/* Take the turn of a graph: 1, 0 if it refuses without an error, or -1. */
static int
take_turn(Segment *self)
{
    PyObject *taken =
        PyObject_CallMethodObjArgs((PyObject *)self, self->acquire, Py_False, NULL);
    if (!taken)
        return -1;
    int is_ours = PyObject_IsTrue(taken);
    Py_DECREF(taken);
    if (is_ours)
        return is_ours;
    PyObject *refused = PyObject_CallMethod((PyObject *)self, "_refuse", NULL);
    if (!refused)
        return -1;
    Py_DECREF(refused);
    return 0;
}

/* Give it back, and free the graph if it was closed meanwhile. Keeps what is raised. */
static void
give_turn(Segment *self)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *given = PyObject_CallMethodObjArgs((PyObject *)self, self->release, NULL);
    /* A graph looks for its turn after it has said that it closes: one of both sees. */
    PyObject *closing = given ? PyObject_GetAttr((PyObject *)self, self->closes) : NULL;
    PyObject *freed = NULL;
    if (closing && PyObject_IsTrue(closing) == 1)
        freed = PyObject_CallMethod((PyObject *)self, "_free_if_idle", NULL);
    Py_XDECREF(freed);
    Py_XDECREF(closing);
    Py_XDECREF(given);
    if (type)
        PyErr_Restore(type, value, trace);
}

/* ---- arrays --------------------------------------------------------------------- */

static void
release_views(Py_buffer *views, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++)
        PyBuffer_Release(&views[i]);
}

static bool
view_of(PyObject *array, bool is_written, Py_buffer *view)
{
    int flags = PyBUF_ND | PyBUF_FORMAT | (is_written ? PyBUF_WRITABLE : 0);
    return !PyObject_GetBuffer(array, view, flags);
}

static bool
fits(const Slot *slot, const Py_buffer *view)
{
    const char *format = view->format ? view->format : "B";
    return view->len == slot->size && format[0] == slot->format && !format[1];
}

static Py_buffer *
source_of(const Step *step, Py_ssize_t number, Py_buffer *views)
{
    Route *route = &step->routes[number];
    return route->port == FIXED ? &route->fixed : &views[route->port];
}

/* Return a list of arrays, those that are not there taken from `arrays`. */
static PyObject *
side_of(const Step *step, Py_ssize_t first, Py_ssize_t last, PyObject *arrays)
{
    PyObject *side = PyList_New(last - first);
    for (Py_ssize_t i = first; side && i < last; i++) {
        Route *route = &step->routes[i];
        PyObject *array = route->port == FIXED ? route->fixed.obj
                                               : PyTuple_GetItem(arrays, route->port);
        if (!array || PyList_SetItem(side, i - first, Py_NewRef(array)))
            Py_CLEAR(side);
    }
    return side;
}

/* Have the graph say in words what is wrong with arrays: true if nothing is. */
static bool
check(const Step *step, PyObject *arrays)
{
    Segment *segment = step->segment;
    PyObject *inputs = side_of(step, 0, segment->inputs, arrays);
    PyObject *outputs =
        inputs ? side_of(step, segment->inputs, segment->count, arrays) : NULL;
    PyObject *result = NULL;
    if (outputs)
        result = PyObject_CallMethod(
            (PyObject *)segment, "_check", "OO", inputs, outputs);
    Py_XDECREF(outputs);
    Py_XDECREF(inputs);
    Py_XDECREF(result);
    return result;
}

/* Return whether arrays of a run fit a segment; raise what the graph says if not. */
static bool
all_fit(const Step *step, Py_buffer *views, PyObject *arrays)
{
    Segment *segment = step->segment;
    bool are_sized = true;
    for (Py_ssize_t i = 0; i < segment->count; i++) {
        Py_buffer *view = source_of(step, i, views);
        if (view->obj && fits(&segment->slots[i], view))
            continue;
        /* Letters may differ for what is the same to NumPy; sizes and rights may not. */
        are_sized &= view->obj && view->len == segment->slots[i].size;
        if (!check(step, arrays))
            return false;
        if (!are_sized) {
            refuse("GeneralFailureError", "the arrays do not fit the graph");
            return false;
        }
    }
    return true;
}

/* Open the arrays that a run uses. One that cannot be stays closed, for `all_fit`. */
static void
open_views(PyObject *arrays, const char *are_used, Py_buffer *views, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        views[i].obj = NULL;
        PyObject *array = are_used[i] ? PyTuple_GetItem(arrays, i) : NULL;
        if (array && !view_of(array, are_used[i] == WRITTEN, &views[i])) {
            PyErr_Clear();
            views[i].obj = NULL;
        }
    }
}

/* ---- places --------------------------------------------------------------------- */

static char *
stand_in(Slot *slot)
{
    if (!slot->memory) {
        slot->memory = memory_of(1, (size_t)slot->size + TAIL_BYTES + ALIGNMENT);
        if (slot->memory)
            slot->aligned = slot->memory + (-(Word)slot->memory) % ALIGNMENT;
    }
    return slot->memory ? slot->aligned : NULL;
}

static Word page_size;

/* Return whether what is behind an array can be read: 1, 0, or -1 with an error. */
static int
has_tail(const Py_buffer *view)
{
    Word begin = (Word)view->buf;
    if (-(begin + (Word)view->len) % page_size >= TAIL_BYTES)
        return 1;
    PyObject *memory = PyImport_ImportModule("asyncnn.engine.array_memory");
    if (!memory)
        return -1;
    PyObject *result = PyObject_CallMethod(
        memory, "has_tail", "OK", view->obj, (unsigned long long)begin);
    Py_DECREF(memory);
    int answer = result ? PyObject_IsTrue(result) : -1;
    Py_XDECREF(result);
    return answer;
}

/* Find the address for an argument: of its memory, or of what stands in. */
static bool
place(const Segment *self, Slot *slot, const Py_buffer *view, bool is_fixed,
      Word *address)
{
    Word begin = (Word)view->buf;
    Word alignment = self->make ? self->alignment : ALIGNMENT;
    if ((is_fixed || slot->size > COPIED_BYTES) && begin % alignment == 0) {
        int is_readable = self->make ? 1 : has_tail(view);
        if (is_readable < 0)
            return false;
        *address = begin;
        if (is_readable)
            return true;
    }
    *address = (Word)stand_in(slot);
    return *address;
}

static Binding *
find(Segment *self, const Word *addresses)
{
    size_t size = sizeof(Word) * (size_t)self->count;
    for (int looked = 0; looked < self->bound; looked++) {
        int number = (self->latest + looked) % self->bound;
        if (!memcmp(self->bindings[number].addresses, addresses, size)) {
            self->latest = number;
            return &self->bindings[number];
        }
    }
    return NULL;
}

static PyObject *
tuple_of(const Word *addresses, Py_ssize_t count)
{
    PyObject *tuple = PyTuple_New(count);
    for (Py_ssize_t i = 0; tuple && i < count; i++) {
        PyObject *address = PyLong_FromSize_t(addresses[i]);
        if (!address || PyTuple_SetItem(tuple, i, address))
            Py_CLEAR(tuple);
    }
    return tuple;
}

/* Have the graph say the words for a set of addresses, and who keeps them. */
static bool
ask_words(Segment *self, const Word *addresses, Word *words, PyObject **owner)
{
    PyObject *call = NULL, *given, *kept;
    PyObject *tuple = tuple_of(addresses, self->count);
    if (tuple)
        call = PyObject_CallMethod((PyObject *)self, "_bind", "(O)", tuple);
    Py_XDECREF(tuple);
    if (call && !PyTuple_Check(call)) {
        PyErr_SetString(PyExc_TypeError, "words come in a tuple");
        Py_CLEAR(call);
    }
    bool is_right = call && PyArg_ParseTuple(call, "O!O", &PyTuple_Type, &given, &kept);
    if (is_right && PyTuple_Size(given) > WORDS) {
        refuse("InvalidArgumentError", "a call of %zd words", PyTuple_Size(given));
        is_right = false;
    }
    for (Py_ssize_t i = 0; is_right && i < PyTuple_Size(given); i++) {
        words[i] = PyLong_AsSize_t(PyTuple_GetItem(given, i));
        is_right = !PyErr_Occurred();
    }
    *owner = is_right ? Py_NewRef(kept) : NULL;
    Py_XDECREF(call);
    return is_right;
}

/* Bind a set of addresses, in the place of the oldest one. */
static bool
bind(Segment *self, Call *made_ready)
{
    Binding made = {NULL, {0}, memory_of((size_t)self->count, sizeof(Word))};
    if (!made.addresses)
        return false;
    memcpy(made.addresses, made_ready->places, sizeof(Word) * (size_t)self->count);
    if (!ask_words(self, made_ready->places, made.words, &made.owner)) {
        PyMem_Free(made.addresses);
        return false;
    }
    memcpy(made_ready->words, made.words, sizeof made.words);
    made_ready->owner = Py_NewRef(made.owner);
    bool is_full = self->bound == MOST_BINDINGS;
    int number = is_full ? self->oldest : self->bound++;
    Binding old = self->bindings[number];
    self->bindings[number] = made;
    self->latest = number;
    if (is_full) {
        self->oldest = (number + 1) % MOST_BINDINGS;
        PyMem_Free(old.addresses);
        Py_XDECREF(old.owner); /* last, as it may do anything */
    }
    return true;
}

static void
unmake_standing(Segment *self)
{
    for (Py_ssize_t i = 0; self->make && self->slots && i < self->count; i++) {
        Word standing = self->slots[i].standing;
        self->slots[i].standing = 0;
        if (standing && self->forks == forks)
            self->unmake(standing, 0, 0, 0, 0, 0, 0, 0);
    }
}

static void
forget(Segment *self)
{
    unmake_standing(self);
    while (self->bound) {
        Binding old = self->bindings[--self->bound];
        self->bindings[self->bound] = (Binding){NULL, {0}, NULL};
        self->oldest = self->latest = 0;
        Py_XDECREF(old.owner);
        PyMem_Free(old.addresses);
    }
}

/* Find where the engine reads and writes in this run, and the words of the call. */
static bool
get_ready(const Step *step, Call *call, Py_buffer *views)
{
    Segment *segment = step->segment;
    for (Py_ssize_t i = 0; i < segment->count; i++) {
        Py_ssize_t port = step->routes[i].port;
        if (port == FIXED)
            call->places[i] = step->places[i];
        else if (!place(segment, &segment->slots[i], &views[port], false,
                        &call->places[i]))
            return false;
    }
    if (segment->make) {
        memcpy(call->words, segment->words, sizeof call->words);
        call->owner = Py_NewRef(Py_None);
        return true;
    }
    Binding *found = find(segment, call->places);
    if (!found)
        return bind(segment, call);
    memcpy(call->words, found->words, sizeof found->words);
    call->owner = Py_NewRef(found->owner); /* whatever is forgotten meanwhile */
    return true;
}

static void
copy_in(const Step *step, const Call *call, Py_buffer *views)
{
    for (Py_ssize_t i = 0; i < step->segment->inputs; i++) {
        void *from = source_of(step, i, views)->buf, *to = (void *)call->places[i];
        if (from != to)
            memcpy(to, from, (size_t)step->segment->slots[i].size);
    }
}

static void
copy_out(const Step *step, const Call *call, Py_buffer *views)
{
    for (Py_ssize_t i = step->segment->inputs; i < step->segment->count; i++) {
        void *from = (void *)call->places[i], *to = source_of(step, i, views)->buf;
        if (from != to)
            memcpy(to, from, (size_t)step->segment->slots[i].size);
    }
}

/* Give up the first tensors of a run, but for those that stand. */
static void
unmake_tensors(const Segment *self, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        const Slot *slot = &self->slots[i];
        if (*slot->cell != slot->standing)
            self->unmake(*slot->cell, 0, 0, 0, 0, 0, 0, 0);
    }
}

/* Make the tensors of a run; return what the engine says of one that it refuses. */
static Word
make_tensors(Segment *self, const Word *places)
{
    for (Py_ssize_t i = 0; i < self->count; i++) {
        Slot *slot = &self->slots[i];
        bool stands_in = slot->memory && places[i] == (Word)slot->aligned;
        if (stands_in && slot->standing) {
            *slot->cell = slot->standing;
            continue;
        }
        Word status = self->make(self->maker, places[i], (Word)slot->size,
                                 slot->shape[0], slot->shape[1], slot->shape[2],
                                 (Word)slot->cell, 0);
        if (status) {
            unmake_tensors(self, i);
            return status;
        }
        if (stands_in)
            slot->standing = *slot->cell;
    }
    return 0;
}

static Word
compute(const Step *step, const Call *call)
{
    const Word *w = call->words;
    Segment *segment = step->segment;
    Word status = segment->make ? make_tensors(segment, call->places) : 0;
    if (status)
        return status;
    status = segment->function(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]);
    if (segment->make)
        unmake_tensors(segment, segment->count);
    /* A status is an int, or a pointer: of an int, the upper half may be anything. */
    return segment->stop ? status : (Word)(int)status;
}

/* Have the graph say what a status means: 0 if it was interrupted, -1 if it failed. */
static int
explain(Segment *self, Word status)
{
    PyObject *result =
        PyObject_CallMethod((PyObject *)self, "_ended", "n", (Py_ssize_t)status);
    Py_XDECREF(result);
    return result ? 0 : -1;
}

/* ---- segments ------------------------------------------------------------------- */

/* Return all arrays of a run in one tuple, if these are as many as the graph takes. */
static PyObject *
arrays_of(Segment *self, PyObject *inputs, PyObject *outputs)
{
    PyObject *first = PySequence_Tuple(inputs);
    PyObject *last = first ? PySequence_Tuple(outputs) : NULL;
    PyObject *arrays = last ? PySequence_Concat(first, last) : NULL;
    if (arrays && (PyTuple_Size(first) != self->inputs
                   || PyTuple_Size(arrays) != self->count)) {
        Py_CLEAR(arrays);
        PyObject *result =
            PyObject_CallMethod((PyObject *)self, "_check", "OO", inputs, outputs);
        if (result)
            refuse("GeneralFailureError", "the arrays do not fit the graph");
        Py_XDECREF(result);
    }
    Py_XDECREF(first);
    Py_XDECREF(last);
    return arrays;
}

static PyObject *
Segment_run(Segment *self, PyObject *args)
{
    PyObject *inputs, *outputs;
    if (!is_ready(self) || !PyArg_ParseTuple(args, "OO:run", &inputs, &outputs))
        return NULL;
    Word status = 0;
    int is_ours = take_turn(self);
    if (is_ours != 1)
        return is_ours ? NULL : Py_NewRef(Py_False);
    PyObject *arrays = arrays_of(self, inputs, outputs);
    if (arrays) {
        Step *step = &self->alone;
        Call *call = &self->own;
        open_views(arrays, self->are_used, self->views, self->count);
        if (all_fit(step, self->views, arrays) && get_ready(step, call, self->views)) {
            store(deadline_of(self->flag.buf), 0);
            Py_BEGIN_ALLOW_THREADS
            copy_in(step, call, self->views);
            status = compute(step, call);
            if (!status)
                copy_out(step, call, self->views);
            Py_END_ALLOW_THREADS
            if (status)
                explain(self, status);
            Py_CLEAR(call->owner);
        }
        release_views(self->views, self->count);
        Py_DECREF(arrays);
    }
    give_turn(self);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(!status);
}

static PyObject *
Segment_interrupt(Segment *self, PyObject *Py_UNUSED(ignored))
{
    if (!is_ready(self))
        return NULL;
    raise_of(self, INTERRUPTED);
    return Py_NewRef(Py_None);
}

static PyObject *
Segment_clear_interrupt(Segment *self, PyObject *Py_UNUSED(ignored))
{
    if (!is_ready(self))
        return NULL;
    lower_flag(self);
    return Py_NewRef(Py_None);
}

static PyObject *
Segment_end(Segment *self, PyObject *Py_UNUSED(ignored))
{
    if (!is_ready(self))
        return NULL;
    raise_of(self, ENDED);
    return Py_NewRef(Py_None);
}

static PyObject *
Segment_forget(Segment *self, PyObject *Py_UNUSED(ignored))
{
    forget(self);
    return Py_NewRef(Py_None);
}

static PyObject *
Segment_bound_addresses(Segment *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *sets = PyList_New(0);
    for (int number = 0; sets && number < self->bound; number++) {
        PyObject *set = tuple_of(self->bindings[number].addresses, self->count);
        if (!set || PyList_Append(sets, set))
            Py_CLEAR(sets);
        Py_XDECREF(set);
    }
    return sets;
}

static bool
slot_of(PyObject *tensor, Slot *slot)
{
    PyObject *size = PyObject_GetAttrString(tensor, "nbytes");
    PyObject *dtype = size ? PyObject_GetAttrString(tensor, "dtype") : NULL;
    PyObject *letter = dtype ? PyObject_GetAttrString(dtype, "char") : NULL;
    const char *format = letter ? PyUnicode_AsUTF8AndSize(letter, NULL) : NULL;
    if (format) {
        slot->format = format[0];
        slot->size = PyLong_AsSsize_t(size);
        if (slot->size <= 0 && !PyErr_Occurred())
            refuse("InvalidArgumentError", "a tensor of %zd bytes", slot->size);
    }
    Py_XDECREF(letter);
    Py_XDECREF(dtype);
    Py_XDECREF(size);
    return !PyErr_Occurred();
}

/* Take the functions that stop an engine, and the word that they are called with. */
static bool
take_stop_calls(Segment *self, PyObject *given)
{
    Word words[3];
    for (Py_ssize_t i = 0; i < 3; i++) {
        PyObject *word = PySequence_GetItem(given, i);
        words[i] = word ? PyLong_AsSize_t(word) : 0;
        Py_XDECREF(word);
        if (PyErr_Occurred())
            return false;
    }
    if (!words[0] || !words[1]) {
        refuse("InvalidArgumentError", "there is no function at 0");
        return false;
    }
    self->stop = (Function)words[0];
    self->go_on = (Function)words[1];
    self->word = words[2];
    return true;
}

/* Take how tensors are made, and the words of each call; the slots are there. */
static bool
take_tensor_calls(Segment *self, PyObject *given)
{
    PyObject *words, *cells, *shapes;
    unsigned long long make, unmake, maker, alignment;
    if (!PyArg_ParseTuple(given, "O!KKKO!O!K", &PyTuple_Type, &words, &make, &unmake,
                          &maker, &PyTuple_Type, &cells, &PyTuple_Type, &shapes,
                          &alignment))
        return false;
    if (!alignment) {
        refuse("InvalidArgumentError", "an alignment of 0 bytes");
        return false;
    }
    if (!make || !unmake) {
        refuse("InvalidArgumentError", "there is no function at 0");
        return false;
    }
    if (PyTuple_Size(words) > WORDS || PyTuple_Size(cells) != self->count
        || PyTuple_Size(shapes) != self->count) {
        refuse("InvalidArgumentError", "%zd cells and %zd shapes for %zd tensors",
               PyTuple_Size(cells), PyTuple_Size(shapes), self->count);
        return false;
    }
    for (Py_ssize_t i = 0; i < PyTuple_Size(words); i++)
        self->words[i] = PyLong_AsSize_t(PyTuple_GetItem(words, i));
    for (Py_ssize_t i = 0; i < self->count && !PyErr_Occurred(); i++) {
        Slot *slot = &self->slots[i];
        unsigned long long lengths, rank, type;
        slot->cell = (Word *)PyLong_AsSize_t(PyTuple_GetItem(cells, i));
        if (PyErr_Occurred()
            || !PyArg_ParseTuple(PyTuple_GetItem(shapes, i), "KKK", &lengths, &rank, &type))
            return false;
        slot->shape[0] = (Word)lengths;
        slot->shape[1] = (Word)rank;
        slot->shape[2] = (Word)type;
    }
    if (PyErr_Occurred())
        return false;
    self->unmake = (Function)(Word)unmake;
    self->maker = (Word)maker;
    self->alignment = (Word)alignment;
    self->forks = forks;
    self->make = (Function)(Word)make; /* last: slots are complete from then on */
    return true;
}

static int
Segment_init(Segment *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {
        "function", "flag", "inputs", "outputs", "stop_by", "tensors", NULL};
    PyObject *function, *flag, *inputs, *outputs, *stop_by = Py_None, *tensors = Py_None;
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "OOO!O!|OO", names, &function, &flag, &PyTuple_Type, &inputs,
            &PyTuple_Type, &outputs, &stop_by, &tensors))
        return -1;
    if (self->slots) {
        PyErr_SetString(PyExc_ValueError, "the segment is initialised");
        return -1;
    }
    Word address = PyLong_AsSize_t(function);
    if (PyErr_Occurred())
        return -1;
    if (!address) {
        refuse("InvalidArgumentError", "there is no function at 0");
        return -1;
    }
    self->function = (Function)address;
    if (stop_by != Py_None && !take_stop_calls(self, stop_by))
        return -1;
    self->inputs = PyTuple_Size(inputs);
    self->count = self->inputs + PyTuple_Size(outputs);
    size_t count = (size_t)self->count;
    if (!(self->slots = memory_of(count, sizeof(Slot)))
        || !(self->are_used = memory_of(count, 1))
        || !(self->views = memory_of(count, sizeof(Py_buffer)))
        || !(self->alone.routes = memory_of(count, sizeof(Route)))
        || !(self->own.places = memory_of(count, sizeof(Word)))
        || !(self->acquire = PyUnicode_InternFromString("_acquire"))
        || !(self->release = PyUnicode_InternFromString("_release"))
        || !(self->closes = PyUnicode_InternFromString("_is_closing")))
        return -1;
    self->alone.segment = self;
    for (Py_ssize_t i = 0; i < self->count; i++) {
        PyObject *tensor = i < self->inputs ? PyTuple_GetItem(inputs, i)
                                            : PyTuple_GetItem(outputs, i - self->inputs);
        self->alone.routes[i].port = i;
        self->are_used[i] = i < self->inputs ? READ : WRITTEN;
        if (!tensor || !slot_of(tensor, &self->slots[i]))
            return -1;
    }
    if (tensors != Py_None && !take_tensor_calls(self, tensors))
        return -1;
    /* Last: it is ready from then on. */
    if (PyObject_GetBuffer(flag, &self->flag, PyBUF_WRITABLE))
        return -1;
    if (self->flag.len < FLAG_BYTES || (Word)self->flag.buf % DEADLINE_AT) {
        PyBuffer_Release(&self->flag);
        refuse("InvalidArgumentError", "a flag has %d aligned bytes", FLAG_BYTES);
        return -1;
    }
    return 0;
}

static int
Segment_traverse(Segment *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    for (int i = 0; i < self->bound; i++)
        Py_VISIT(self->bindings[i].owner);
    return 0;
}

static int
Segment_clear(Segment *self)
{
    forget(self);
    return 0;
}

static void
free_type(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static void
Segment_dealloc(Segment *self)
{
    PyObject_GC_UnTrack(self);
    forget(self);
    PyBuffer_Release(&self->flag);
    for (Py_ssize_t i = 0; self->slots && i < self->count; i++)
        PyMem_Free(self->slots[i].memory);
    PyMem_Free(self->slots);
    PyMem_Free(self->are_used);
    PyMem_Free(self->views);
    PyMem_Free(self->alone.routes);
    PyMem_Free(self->own.places);
    Py_XDECREF(self->acquire);
    Py_XDECREF(self->release);
    Py_XDECREF(self->closes);
    free_type((PyObject *)self);
}

/* ---- controls ------------------------------------------------------------------- */

/* The word comes first, then the flag of the segment that is found under way; the run
 * names its segment first, then looks at the words. All four are sequentially
 * consistent: either the segment is found here, after its flag was lowered, or the run
 * sees the word. The segment lasts, as it is freed by nobody without the interpreter
 * lock, which is held here. */

static PyObject *
Control_stop(Control *self, PyObject *Py_UNUSED(ignored))
{
    store(&self->stop, 1);
    Segment *current = load(&self->current);
    if (current)
        raise_of(current, INTERRUPTED);
    return Py_NewRef(Py_None);
}

static PyObject *
Control_pause(Control *self, PyObject *Py_UNUSED(ignored))
{
    store(&self->pause, 1);
    Segment *current = load(&self->current);
    if (current && load(&self->may_pause))
        raise_of(current, INTERRUPTED);
    return Py_NewRef(Py_None);
}

static PyObject *
Control_longest(Control *self, PyObject *Py_UNUSED(ignored))
{
    return Py_BuildValue(
        "LnLn", (long long)load(&self->since_ns), load(&self->part) - 1,
        (long long)load(&self->longest_ns), load(&self->longest_part) - 1);
}

static PyObject *
Control_position(Control *self, void *Py_UNUSED(closure))
{
    return PyLong_FromSsize_t(load(&self->position));
}

/* ---- runs ----------------------------------------------------------------------- */


/* Return whether a run is to end here, which is a boundary for its longest part. */
static int
look(Control *control)
{
    if (load(&control->stop))
        return STOPPED;
    if (!control->deadline_ns)
        return DONE;
    int64_t now = now_ns(), taken = now - control->since_ns;
    if (taken > control->longest_ns) {
        store(&control->longest_part, control->part);
        store(&control->longest_ns, taken);
    }
    store(&control->since_ns, now);
    store(&control->part, control->position + 1);
    return now >= control->deadline_ns ? LATE : DONE;
}

/* Run one segment to its end. No interpreter lock here, nor anything of Python's. */
static int
run_step(const Step *step, const Call *call, Control *control)
{
    Segment *segment = step->segment;
    /* One that is notified has no parts to go on from: it is stopped only. */
    bool may_pause = !segment->stop && control->interrupted < MOST_INTERRUPTED;
    store(&control->may_pause, may_pause);
    store(deadline_of(segment->flag.buf), control->deadline_ns);
    copy_in(step, call, control->views);
    /* Lowered before it can be found, looked at behind: see `Control_stop`. */
    lower_flag(segment);
    store(&control->current, segment);
    int outcome = look(control);
    if (outcome)
        return outcome;
    if (may_pause && load(&control->pause)) {
        control->interrupted++;
        control->attempts = 0;
        return PAUSED;
    }
    control->status = compute(step, call);
    store(&control->current, NULL);
    if (control->status)
        return EARLY;
    control->interrupted = control->attempts = 0;
    if (load(&control->stop))
        return STOPPED;
    copy_out(step, call, control->views);
    return DONE;
}

/* Return whether a run is to pause at this boundary. */
static bool
is_to_pause(Control *control, Py_ssize_t at)
{
    if (at == control->first || control->attempts)
        return false; /* the first one is run in any case, another try counts itself */
    return control->was_asked || load(&control->pause)
           || (control->review_ns && now_ns() >= control->review_ns);
}

/* Run segments to the end, or until it has to stop. No interpreter lock here. */
static int
run_steps(Control *control)
{
    Job *job = control->job;
    for (Py_ssize_t at = control->position; at < job->count; at++) {
        if (is_to_pause(control, at))
            return PAUSED;
        int outcome = run_step(&job->steps[at], &control->calls[at], control);
        store(&control->current, NULL);
        if (outcome)
            return outcome;
        store(&control->position, at + 1);
    }
    return DONE;
}

/* Say what becomes of a run that an engine has ended early: DONE if it is to go on. */
static int
settle(Control *control)
{
    Segment *segment = control->job->steps[control->position].segment;
    if (explain(segment, control->status))
        return FAILED;
    if (flag_of(segment) != ENDED && ++control->attempts < MOST_ATTEMPTS)
        return DONE;
    control->attempts = 0;
    PyErr_SetString(PyExc_RuntimeError,
                    "it was interrupted each time, without a reason");
    return FAILED;
}

/* Read a time of the steady clock, 0 for None. */
static bool
time_from(PyObject *given, int64_t *time_ns)
{
    *time_ns = 0;
    if (given == Py_None)
        return true;
    int beyond;
    *time_ns = PyLong_AsLongLongAndOverflow(given, &beyond);
    if (PyErr_Occurred())
        return false;
    if (beyond > 0)
        *time_ns = INT64_MAX;
    else if (*time_ns <= 0)
        *time_ns = 1; /* 0 is none; the clock began with more */
    return true;
}

/* Read what is to stop a run: its deadline, what its pause says by now, its review. */
static bool
take_orders(Job *self, Control *control, PyObject *deadline, PyObject *pause,
            PyObject *review)
{
    State *state = PyType_GetModuleState(Py_TYPE((PyObject *)self));
    if (!time_from(deadline, &control->deadline_ns)
        || !time_from(review, &control->review_ns))
        return false;
    if (control->deadline_ns)
        store(&control->since_ns, now_ns());
    /* Whoever requests a pause says so before calling `Control.pause`: what is lost
     * here is seen below. */
    store(&control->pause, 0);
    control->first = control->position;
    PyObject *requested =
        pause == Py_None ? Py_NewRef(Py_False)
                         : PyObject_GetAttr(pause, state->names[NAME_requested]);
    int was_asked = requested ? PyObject_IsTrue(requested) : -1;
    Py_XDECREF(requested);
    control->was_asked = was_asked > 0;
    return was_asked >= 0;
}

/* Take the turns of all graphs: 1, 0 if one refuses without an error, or -1. */
static int
take_turns(Job *self)
{
    int is_ours = 1;
    Py_ssize_t taken = 0;
    while (taken < self->count
           && (is_ours = take_turn(self->steps[taken].segment)) == 1)
        taken++;
    if (taken < self->count)
        while (taken)
            give_turn(self->steps[--taken].segment);
    return is_ours;
}

static void
give_turns(Job *self)
{
    for (Py_ssize_t at = self->count; at--;)
        give_turn(self->steps[at].segment);
}

/* Have all memory for a run, in one piece. */
static bool
make_room(Job *self, Control *control)
{
    char *room = self->spare;
    self->spare = NULL;
    if (!room && !(room = memory_of(1, self->size)))
        return false;
    control->views = (Py_buffer *)room;
    room += sizeof(Py_buffer) * (size_t)self->ports;
    control->calls = (Call *)room;
    room += sizeof(Call) * (size_t)self->count;
    for (Py_ssize_t at = 0; at < self->count; at++) {
        control->calls[at].places = (Word *)room;
        room += sizeof(Word) * (size_t)self->steps[at].segment->count;
    }
    return true;
}

/* Let go of all that a run has. Keeps what is raised. */
static void
let_go(Control *control)
{
    Job *job = control->job;
    if (!job)
        return;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    for (Py_ssize_t at = 0; at < control->ready; at++)
        Py_CLEAR(control->calls[at].owner);
    control->ready = 0;
    release_views(control->views, job->ports);
    PyMem_Free(job->spare);
    job->spare = control->views;
    control->views = NULL;
    control->calls = NULL;
    give_turns(job);
    control->job = NULL;
    Py_CLEAR(control->arrays);
    Py_CLEAR(control->token);
    Py_CLEAR(control->fields);
    Py_DECREF((PyObject *)job); /* last: it may go with its graphs */
    PyErr_Restore(type, value, trace);
}

/* Make a run ready: afterwards nothing of Python's is needed until its end. */
static bool
begin(Job *self, PyObject *given, Control *control)
{
    if (!self->count || control->position > self->count) {
        PyErr_SetString(PyExc_ValueError, self->count
                                              ? "the control belongs to another job"
                                              : "the job was not initialised");
        return false;
    }
    PyObject *arrays = PySequence_Tuple(given);
    if (!arrays)
        return false;
    if (PyTuple_Size(arrays) != self->ports) {
        refuse("InvalidArgumentError", "%zd arrays were given; the job has %zd ports",
               PyTuple_Size(arrays), self->ports);
        Py_DECREF(arrays);
        return false;
    }
    int is_ours = take_turns(self);
    if (is_ours == 0)
        PyErr_SetString(PyExc_RuntimeError,
                        "it was interrupted each time, without a reason");
    if (is_ours != 1 || !make_room(self, control)) {
        if (is_ours == 1)
            give_turns(self);
        Py_DECREF(arrays);
        return false;
    }
    control->job = (Job *)Py_NewRef((PyObject *)self);
    control->arrays = arrays;
    control->ready = control->position;
    open_views(arrays, self->are_used, control->views, self->ports);
    for (Py_ssize_t at = control->position; at < self->count; at++) {
        Step *step = &self->steps[at];
        if (!all_fit(step, control->views, arrays)
            || !get_ready(step, &control->calls[at], control->views)) {
            store(&control->position, at);
            let_go(control);
            return false;
        }
        control->ready = at + 1;
    }
    return true;
}

static Control *
control_from(Job *self, PyObject *given)
{
    State *state = PyType_GetModuleState(Py_TYPE((PyObject *)self));
    bool is_control = PyObject_TypeCheck(given, state->control);
    if (is_control && !((Control *)given)->job)
        return (Control *)given;
    PyErr_SetString(is_control ? PyExc_ValueError : PyExc_TypeError,
                    is_control ? "the run is under way" : "that is no Control");
    return NULL;
}

static PyObject *
Job_run(Job *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2 && nargs != 5) {
        PyErr_Format(PyExc_TypeError, "run takes 2 or 5 arguments, not %zd", nargs);
        return NULL;
    }
    Control *control = control_from(self, args[1]);
    PyObject *deadline = nargs > 2 ? args[2] : Py_None;
    PyObject *pause = nargs > 2 ? args[3] : Py_None;
    PyObject *review = nargs > 2 ? args[4] : Py_None;
    if (!control || !take_orders(self, control, deadline, pause, review)
        || !begin(self, args[0], control))
        return NULL;
    int outcome;
    do {
        Py_BEGIN_ALLOW_THREADS
        outcome = run_steps(control);
        Py_END_ALLOW_THREADS
    } while (outcome == EARLY && !(outcome = settle(control)));
    let_go(control);
    return outcome == FAILED ? NULL : PyLong_FromLong(outcome);
}

static void
Control_dealloc(Control *self)
{
    let_go(self);
    free_type((PyObject *)self);
}

/* ---- jobs ----------------------------------------------------------------------- */

/* Take an argument of a step: the number of a port, or an array that is fixed. */
static bool
route_of(Job *self, Py_ssize_t at, Py_ssize_t number, PyObject *given)
{
    Step *step = &self->steps[at];
    Route *route = &step->routes[number];
    bool is_written = number >= step->segment->inputs;
    if (PyLong_Check(given)) {
        Py_ssize_t port = PyLong_AsSsize_t(given);
        if (port == -1 && PyErr_Occurred())
            PyErr_Clear(); /* far too large */
        if (port < 0 || port >= self->ports) {
            refuse("InvalidArgumentError", "segment %zd, argument %zd: there is no port "
                   "%S of %zd", at, number, given, self->ports);
            return false;
        }
        route->port = port;
        if (is_written || !self->are_used[port])
            self->are_used[port] = is_written ? WRITTEN : READ;
        return true;
    }
    route->port = FIXED;
    if (!view_of(given, is_written, &route->fixed)) {
        route->fixed.obj = NULL;
        return false;
    }
    Slot *slot = &step->segment->slots[number];
    if (route->fixed.len == slot->size)
        return place(step->segment, slot, &route->fixed, true, &step->places[number]);
    refuse("InvalidArgumentError", "segment %zd, argument %zd has %zd bytes; the graph "
           "has %zd", at, number, route->fixed.len, slot->size);
    return false;
}

static bool
step_of(Job *self, Py_ssize_t at, PyObject *parts)
{
    State *state = PyType_GetModuleState(Py_TYPE((PyObject *)self));
    PyObject *segment, *inputs, *outputs;
    if (!PyTuple_Check(parts)
        || !PyArg_ParseTuple(parts, "O!O!O!", state->segment, &segment, &PyTuple_Type,
                             &inputs, &PyTuple_Type, &outputs)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "a segment comes with its arguments");
        return false;
    }
    Step *step = &self->steps[at];
    step->segment = (Segment *)Py_NewRef(segment);
    if (!is_ready(step->segment))
        return false;
    Py_ssize_t given = PyTuple_Size(inputs), count = step->segment->count;
    if (given != step->segment->inputs || given + PyTuple_Size(outputs) != count) {
        refuse("InvalidArgumentError", "segment %zd takes %zd inputs and %zd outputs",
               at, step->segment->inputs, count - step->segment->inputs);
        return false;
    }
    if (!(step->routes = memory_of((size_t)count, sizeof(Route)))
        || !(step->places = memory_of((size_t)count, sizeof(Word))))
        return false;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *argument = i < given ? PyTuple_GetItem(inputs, i)
                                       : PyTuple_GetItem(outputs, i - given);
        if (!route_of(self, at, i, argument))
            return false;
    }
    return true;
}

static void
drop(Job *self)
{
    while (self->count) {
        Step *step = &self->steps[--self->count];
        Py_ssize_t count = step->routes ? step->segment->count : 0;
        for (Py_ssize_t i = 0; i < count; i++)
            PyBuffer_Release(&step->routes[i].fixed);
        PyMem_Free(step->routes);
        PyMem_Free(step->places);
        Py_XDECREF((PyObject *)step->segment);
    }
    PyMem_Free(self->steps);
    PyMem_Free(self->are_used);
    PyMem_Free(self->spare);
    self->steps = NULL;
    self->are_used = NULL;
    self->spare = NULL;
}

static int
Job_init(Job *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"segments", "ports", NULL};
    PyObject *segments;
    Py_ssize_t ports;
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "O!n", names, &PyTuple_Type, &segments, &ports))
        return -1;
    if (self->steps) {
        PyErr_SetString(PyExc_ValueError, "the job is initialised");
        return -1;
    }
    Py_ssize_t count = PyTuple_Size(segments);
    if (!count || ports < 0) {
        refuse("InvalidArgumentError", "a job has segments, and no port less than none");
        return -1;
    }
    if (!(self->steps = memory_of((size_t)count, sizeof(Step)))
        || !(self->are_used = memory_of((size_t)ports, 1)))
        return -1;
    self->ports = ports;
    self->size = sizeof(Py_buffer) * (size_t)ports;
    for (Py_ssize_t at = 0; at < count; at++) {
        self->count = at + 1; /* so that what there is of it goes with the job */
        if (!step_of(self, at, PyTuple_GetItem(segments, at))) {
            drop(self);
            return -1;
        }
        size_t arguments = (size_t)self->steps[at].segment->count;
        self->size += sizeof(Call) + sizeof(Word) * arguments;
    }
    return 0;
}

static int
Job_traverse(Job *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    for (Py_ssize_t at = 0; at < self->count; at++) {
        Step *step = &self->steps[at];
        Py_VISIT(step->segment);
        for (Py_ssize_t i = 0; step->routes && i < step->segment->count; i++)
            Py_VISIT(step->routes[i].fixed.obj);
    }
    return 0;
}

static void
Job_dealloc(Job *self)
{
    PyObject_GC_UnTrack(self);
    drop(self);
    free_type((PyObject *)self);
}

/* ---- lanes ---------------------------------------------------------------------- */

/* A lane is a thread that never touches Python. The loop puts a run in `next`, the lane
 * takes it from there: each is one exchange of a pointer, which publishes all that was
 * written before.
 *
 * What has ended goes on the stack of a port. The lane that finds the stack empty writes
 * to the port's descriptor, an eventfd that never blocks; a drain reads that first, then
 * takes the whole stack. A push behind that has found the stack empty, so none is left
 * without a wake-up.
 *
 * Thread and Port are no objects of Python: a lane that is stuck may outlast these. A
 * run belongs to its lane from `Job.offer` until it is drained; who offers keeps the
 * buffers by it. One that ends when its port has gone stays for good, since no
 * lane can free what is Python's. */

enum { LOOK_NS = 200000, LONG_YIELD_NS = 50000 };

typedef struct {
    int references;
    int fd;
    int forks;      /* of the process that made it, which alone reads */
    Control *ended; /* the newest first */
} Outlet;

typedef struct Thread {
    int references; /* the lane's, and the thread's own */
    Outlet *outlet;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    Control *next;
    int64_t left_ns;    /* when the last run ended; the thread's own, as the next one */
    int64_t between_ns; /* from there to the run behind it */
    int sleeps;
    int is_closing;
    int has_ended;
    int nice;
    char name[16];
    int forks; /* of the process that has the thread */
    bool is_joined;
} Thread;

typedef struct {
    PyObject_HEAD
    Outlet *outlet;
} Port;

typedef struct {
    PyObject_HEAD
    Thread *thread; /* NULL until it is initialised */
} Lane;

static void
release_outlet(Outlet *outlet)
{
    if (__atomic_sub_fetch(&outlet->references, 1, __ATOMIC_ACQ_REL))
        return;
    close(outlet->fd);
    free(outlet);
}

static void
release_thread(Thread *self)
{
    if (__atomic_sub_fetch(&self->references, 1, __ATOMIC_ACQ_REL))
        return;
    release_outlet(self->outlet);
    pthread_cond_destroy(&self->wake);
    pthread_mutex_destroy(&self->mutex);
    free(self);
}

/* Wake the loop. */
static void
signal_outlet(const Outlet *outlet)
{
    uint64_t one = 1;
    while (write(outlet->fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

/* Notify the loop that a run has ended; from then on it is the loop's. */
static void
push(Outlet *outlet, Control *control)
{
    Control *top = load(&outlet->ended);
    do
        control->below = top;
    while (!__atomic_compare_exchange_n(&outlet->ended, &top, control, true,
                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    if (!top)
        signal_outlet(outlet);
}

/* Look for the next run for some time, if the last one came that soon; true to take
 * it, or to close.
 *
 * To wake a lane up takes as long as a short run. Others may have the processor between
 * two looks; where somebody wants it for long, waking up costs no more than this. */
static bool
looks_on(Thread *self)
{
    if (self->nice || self->between_ns > LOOK_NS)
        return false;
    for (int64_t now = now_ns(), before; now - self->left_ns < LOOK_NS;) {
        sched_yield();
        if (load(&self->next) || load(&self->is_closing))
            return true;
        before = now;
        now = now_ns();
        if (now - before > LONG_YIELD_NS)
            break;
    }
    self->between_ns = INT64_MAX;
    return false;
}

/* Take the next run as soon as there is one; NULL if the lane closes.
 *
 * The loop stores `next`, then loads `sleeps`; the lane stores `sleeps`, then loads
 * `next`; all four are sequentially consistent. So one of both sees the other: the lane
 * finds the run, or the loop the sleeper, which it wakes under the mutex. That the lane
 * gives up only in its wait, so the signal cannot come in between. Likewise for
 * `is_closing`. */
static Control *
take(Thread *self)
{
    for (;;) {
        Control *taken = __atomic_exchange_n(&self->next, NULL, __ATOMIC_SEQ_CST);
        if (taken || load(&self->is_closing))
            return taken;
        if (looks_on(self))
            continue;
        pthread_mutex_lock(&self->mutex);
        store(&self->sleeps, 1);
        while (!load(&self->next) && !load(&self->is_closing))
            pthread_cond_wait(&self->wake, &self->mutex);
        store(&self->sleeps, 0);
        pthread_mutex_unlock(&self->mutex);
    }
}

static void
wake(Thread *self)
{
    if (!load(&self->sleeps))
        return;
    /* Signalled behind the mutex: the lane does not wake up only to wait for it. */
    pthread_mutex_lock(&self->mutex);
    pthread_mutex_unlock(&self->mutex);
    pthread_cond_signal(&self->wake);
}

static void *
serve(void *given)
{
    Thread *self = given;
#ifdef __linux__
    pthread_setname_np(pthread_self(), self->name);
    if (self->nice) { /* added to the value of the thread that made it */
        id_t number = (id_t)syscall(SYS_gettid);
        setpriority(PRIO_PROCESS, number, getpriority(PRIO_PROCESS, number) + self->nice);
    }
#endif
    for (Control *control; (control = take(self));) {
        int64_t cpu_ns = time_of(CLOCK_THREAD_CPUTIME_ID);
        control->started_ns = now_ns();
        self->between_ns = control->started_ns - self->left_ns;
        control->outcome = run_steps(control);
        control->ended_ns = now_ns();
        control->cpu_ns = time_of(CLOCK_THREAD_CPUTIME_ID) - cpu_ns;
        self->left_ns = control->ended_ns;
        push(self->outlet, control);
    }
    store(&self->has_ended, 1);
    release_thread(self);
    return NULL;
}

static bool
start(Thread *self)
{
    /* A signal is for a thread that can run Python: the new one inherits the mask. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&self->thread, NULL, serve, self);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!error)
        return true;
    errno = error;
    PyErr_SetFromErrno(PyExc_OSError);
    return false;
}

static int
Lane_init(Lane *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"port", "name", "nice", NULL};
    State *state = PyType_GetModuleState(Py_TYPE((PyObject *)self));
    PyObject *port;
    const char *name;
    int nice = 0;
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "O!s|i:Lane", names, state->port, &port, &name, &nice))
        return -1;
    Outlet *outlet = ((Port *)port)->outlet;
    if (self->thread || !outlet) {
        PyErr_SetString(PyExc_ValueError, outlet ? "the lane is initialised"
                                                 : "the port was not initialised");
        return -1;
    }
    if (PyInterpreterState_GetID(PyInterpreterState_Get())) {
        PyErr_SetString(PyExc_OSError, "lanes are the main interpreter's");
        return -1;
    }
    Thread *thread = calloc(1, sizeof *thread);
    if (!thread) {
        PyErr_NoMemory();
        return -1;
    }
    thread->references = 2;
    thread->outlet = outlet;
    __atomic_add_fetch(&outlet->references, 1, __ATOMIC_RELAXED);
    pthread_mutex_init(&thread->mutex, NULL);
    pthread_cond_init(&thread->wake, NULL);
    thread->nice = nice;
    thread->between_ns = INT64_MAX;
    thread->forks = forks;
    snprintf(thread->name, sizeof thread->name, "%s", name);
    if (!start(thread)) {
        thread->references = 1;
        release_thread(thread);
        return -1;
    }
    self->thread = thread;
    return 0;
}

/* Return whether it is the lane of this process, which has its thread. */
static bool
is_ours(const Lane *self)
{
    return self->thread && self->thread->forks == forks;
}

static PyObject *
Lane_close(Lane *self, PyObject *Py_UNUSED(ignored))
{
    if (is_ours(self)) {
        store(&self->thread->is_closing, 1);
        wake(self->thread);
    }
    return Py_NewRef(Py_None);
}

static bool
has_ended(Thread *self)
{
    if (!load(&self->has_ended))
        return false;
    if (!self->is_joined)
        pthread_join(self->thread, NULL); /* it has nothing left to do but that */
    self->is_joined = true;
    return true;
}

static PyObject *
Lane_has_ended(Lane *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(!is_ours(self) || has_ended(self->thread));
}

static void
Lane_dealloc(Lane *self)
{
    if (is_ours(self)) {
        Py_DECREF(Lane_close(self, NULL));
        if (!has_ended(self->thread))
            pthread_detach(self->thread->thread);
        release_thread(self->thread);
    } /* else its mutex may be held by a thread that is not there */
    free_type((PyObject *)self);
}

static int
Port_init(Port *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"fd", NULL};
    int fd;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "i:Port", names, &fd))
        return -1;
    if (self->outlet) {
        PyErr_SetString(PyExc_ValueError, "the port is initialised");
        return -1;
    }
    /* Its own: a lane may write when the loop's has been closed. */
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    Outlet *outlet = calloc(1, sizeof *outlet);
    if (!outlet) {
        close(own);
        PyErr_NoMemory();
        return -1;
    }
    outlet->references = 1;
    outlet->fd = own;
    outlet->forks = forks;
    self->outlet = outlet;
    return 0;
}

/* ---- runs with fields ----------------------------------------------------------- */

static bool
is_given(PyObject *value)
{
    return value && value != Py_None;
}

/* Set a field; steals the value. */
static void
set(Fields *self, int number, PyObject *value)
{
    PyObject *before = self->objects[number];
    self->objects[number] = value;
    Py_XDECREF(before);
}

/* Return whether an attribute is true; 1, 0 or -1. */
static int
is_true(PyObject *object, PyObject *name)
{
    PyObject *value = PyObject_GetAttr(object, name);
    int answer = value ? PyObject_IsTrue(value) : -1;
    Py_XDECREF(value);
    return answer;
}

/* Return the idle workspaces of the plan of a run; NULL without an error if it is kept
 * no longer. */
static PyObject *
idle_of(State *state, Fields *self)
{
    PyObject *program =
        PyObject_GetAttr(self->objects[AT__executable], state->names[NAME_program]);
    PyObject *all = program ? PyObject_GetAttr(program, state->names[NAME_idle]) : NULL;
    PyObject *id = all ? PyLong_FromVoidPtr(self->objects[AT__plan]) : NULL;
    PyObject *found = id ? PyDict_GetItemWithError(all, id) : NULL;
    Py_XINCREF(found);
    Py_XDECREF(id);
    Py_XDECREF(all);
    Py_XDECREF(program);
    return found;
}

/* Note that a lane has come to the end of a run. */
static bool
keep_end(State *state, Fields *self, const Control *control)
{
    if (!self->started_ns)
        self->started_ns = control->started_ns;
    self->ended_ns = control->ended_ns;
    self->computed_ns += control->ended_ns - control->started_ns;
    self->cpu_ns += control->cpu_ns;
    PyObject *workspace = self->objects[AT__workspace];
    self->objects[AT__workspace] = Py_NewRef(Py_None);
    PyObject *idle = is_given(workspace) ? idle_of(state, self) : NULL, *kept = NULL;
    if (idle)
        kept = PyObject_CallMethodObjArgs(
            idle, state->names[NAME_append], workspace, NULL);
    bool is_kept = kept || (!idle && !PyErr_Occurred());
    Py_XDECREF(kept);
    Py_XDECREF(idle);
    Py_XDECREF(workspace);
    PyObject *shapes = NULL;
    if (is_kept)
        shapes = PyObject_GetAttr(
            self->objects[AT__plan], state->names[NAME_known_outputs]);
    if (shapes)
        set(self, AT__shapes, shapes);
    return shapes;
}

/* Report what a run has computed, if that is asked for. */
static bool
report_run(State *state, Fields *self)
{
    int is_on = is_true(state->cpuexe, state->names[NAME_is_on]);
    if (is_on <= 0)
        return !is_on;
    PyObject *result = PyObject_CallMethodObjArgs(
        (PyObject *)self, state->names[NAME__report_run], NULL);
    Py_XDECREF(result);
    return result;
}

/* Let go of a run that a lane has left; return its token, how it ended, and times.
 *
 * A run with fields that has come to its end keeps these itself: it has ended as None. */
static PyObject *
take_back(Control *self)
{
    State *state = PyType_GetModuleState(Py_TYPE((PyObject *)self));
    int outcome = self->outcome;
    if (outcome == EARLY) {
        outcome = settle(self);
        if (!outcome)
            outcome = look(self);
        if (!outcome) {
            outcome = PAUSED; /* or to be offered again */
            if (load(&self->pause)) {
                self->interrupted++;
                self->attempts = 0;
            }
        }
    }
    PyObject *end = NULL;
    if (outcome == DONE && self->fields) {
        if (keep_end(state, self->fields, self))
            end = Py_NewRef(Py_None);
        else
            outcome = FAILED;
    }
    if (outcome == FAILED) {
        PyObject *type, *trace;
        PyErr_Fetch(&type, &end, &trace);
        PyErr_NormalizeException(&type, &end, &trace);
        Py_XDECREF(type);
        Py_XDECREF(trace); /* it would keep the frames of the graph */
    } else if (!end) {
        end = PyLong_FromLong(outcome);
    }
    PyObject *token = Py_NewRef(self->token);
    let_go(self);
    return Py_BuildValue("NNLLL", token, end, (long long)self->started_ns,
                         (long long)self->ended_ns, (long long)self->cpu_ns);
}

/* Add what `take_back` returns of all that has ended to a list, the first one first. */
static PyObject *
Port_drain(Port *self, PyObject *ended)
{
    Control *top = NULL, *first = NULL;
    uint64_t woken;
    if (self->outlet) {
        while (self->outlet->forks == forks
               && read(self->outlet->fd, &woken, sizeof woken) < 0 && errno == EINTR)
            ;
        top = __atomic_exchange_n(&self->outlet->ended, NULL, __ATOMIC_SEQ_CST);
    }
    while (top) {
        Control *below = top->below;
        top->below = first;
        first = top;
        top = below;
    }
    State *state = PyType_GetModuleState(Py_TYPE((PyObject *)self));
    PyObject *type = NULL, *value = NULL, *trace = NULL;
    while (first) {
        Control *following = first->below;
        first->below = NULL;
        Fields *run = first->outcome == DONE ? first->fields : NULL;
        Py_XINCREF((PyObject *)run);
        PyObject *left = take_back(first);
        /* Listed first: an interrupt comes as it is reported. No lock is held, as who
         * logs may submit more. */
        bool is_whole = left && !PyList_Append(ended, left)
                        && (!run || report_run(state, run));
        if (!is_whole && !type)
            PyErr_Fetch(&type, &value, &trace);
        else if (!is_whole)
            PyErr_Clear();
        Py_XDECREF(left);
        Py_XDECREF((PyObject *)run);
        Py_DECREF((PyObject *)first);
        first = following;
    }
    if (!type)
        return Py_NewRef(Py_None);
    PyErr_Restore(type, value, trace);
    return NULL;
}

/* Call what looks at a list when all that has ended is in it. The loop comes again if
 * that fails: an interrupt may be there before it has looked at anything. */
static PyObject *
Port_bring(Port *self, PyObject *args)
{
    PyObject *ended, *look;
    if (!PyArg_ParseTuple(args, "O!O:bring", &PyList_Type, &ended, &look))
        return NULL;
    PyObject *drained = Port_drain(self, ended);
    PyObject *looked = drained ? PyObject_CallNoArgs(look) : NULL;
    Py_XDECREF(drained);
    if (!looked && self->outlet && self->outlet->forks == forks)
        signal_outlet(self->outlet);
    return looked;
}

static PyObject *
Port_lane(Port *self, PyObject *args)
{
    State *state = PyType_GetModuleState(Py_TYPE((PyObject *)self));
    const char *name;
    int nice = 0;
    if (!PyArg_ParseTuple(args, "s|i:lane", &name, &nice))
        return NULL;
    return PyObject_CallFunction(
        (PyObject *)state->lane, "Osi", (PyObject *)self, name, nice);
}

static void
Port_dealloc(Port *self)
{
    if (self->outlet) {
        PyObject *ended = PyList_New(0);
        Py_XDECREF(ended ? Port_drain(self, ended) : NULL);
        Py_XDECREF(ended);
        release_outlet(self->outlet);
    }
    free_type((PyObject *)self);
}

/* Hand a run to a lane, which brings its token back; false with an error if it cannot
 * take it. */
static bool
hand_over(Job *self, PyObject *to, PyObject *token, PyObject *arrays, PyObject *given,
          PyObject *const *orders)
{
    State *state = PyType_GetModuleState(Py_TYPE((PyObject *)self));
    if (!PyObject_TypeCheck(to, state->lane)) {
        PyErr_SetString(PyExc_TypeError, "the first argument is a Lane");
        return false;
    }
    Lane *lane = (Lane *)to;
    Control *control = control_from(self, given);
    if (!control)
        return false;
    if (!is_ours(lane) || load(&lane->thread->is_closing)
        || load(&lane->thread->next)) {
        PyErr_SetString(PyExc_ValueError, "the lane takes no run now");
        return false;
    }
    if (!take_orders(self, control, orders[0], orders[1], orders[2])
        || !begin(self, arrays, control))
        return false;
    control->token = Py_NewRef(token);
    Py_INCREF((PyObject *)control); /* the lane's */
    Control *none = NULL;
    if (!__atomic_compare_exchange_n(&lane->thread->next, &none, control, false,
                                     __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
        let_go(control); /* another thread was here, as the words were given */
        Py_DECREF((PyObject *)control);
        PyErr_SetString(PyExc_ValueError, "the lane takes no run now");
        return false;
    }
    wake(lane->thread);
    return true;
}

/* Hand a run to a lane: lane, token, arrays, control, deadline, pause, review. */
static PyObject *
Job_offer(Job *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 7) {
        PyErr_Format(PyExc_TypeError, "offer takes 7 arguments, not %zd", nargs);
        return NULL;
    }
    bool is_handed = hand_over(self, args[0], args[1], args[2], args[3], args + 4);
    return is_handed ? Py_NewRef(Py_None) : NULL;
}

/* Have a run go on from where it has stopped, or take an idle workspace for it: 1, 0 if
 * there is none, or -1. */
static int
equip(State *state, Fields *self)
{
    if (is_given(self->objects[AT__workspace]) && is_given(self->objects[AT__control]))
        return 1;
    PyObject *idle = idle_of(state, self), *taken = NULL;
    if (idle)
        taken = PyObject_CallMethodObjArgs(idle, state->names[NAME_pop], NULL);
    Py_XDECREF(idle);
    if (!taken && PyErr_ExceptionMatches(PyExc_LookupError))
        PyErr_Clear();
    if (!taken)
        return PyErr_Occurred() ? -1 : 0;
    set(self, AT__workspace, taken);
    PyObject *control = PyType_GenericNew(state->control, NULL, NULL);
    if (!control)
        return -1;
    set(self, AT__control, control);
    return 1;
}

/* Decide whether several threads compute it: 1 if one does, which is for a lane. */
static int
spread(State *state, Fields *self, PyObject *executable, PyObject *pause)
{
    int may = is_true(executable, state->names[NAME_may_spread]);
    if (may > 0)
        may = is_true(pause, state->names[NAME_lanes_each]);
    if (may <= 0)
        return may ? -1 : 1;
    PyObject *result = PyObject_CallMethodObjArgs(
        (PyObject *)self, state->names[NAME__spread], pause, NULL);
    Py_XDECREF(result);
    return result ? self->threads <= 1 : -1;
}

/* Give a run to the last of these lanes: 1, 0 if it does not take it, or -1. */
static int
give(State *state, Fields *self, PyObject *idle, PyObject *job, PyObject *pause)
{
    Py_ssize_t last = PyList_Size(idle) - 1;
    if (last < 0)
        return 0;
    PyObject *lane = Py_NewRef(PyList_GetItem(idle, last));
    PyObject *thread = PyObject_GetAttr(lane, state->names[NAME_thread]);
    PyObject *review = thread ? PyObject_GetAttr(pause, state->names[NAME_from_ns]) : NULL;
    int is_given_away = -1;
    /* First: it may have come back when it has been handed over. */
    if (review && !PyObject_SetAttr(lane, state->names[NAME_work], (PyObject *)self)
        && !PyList_SetSlice(idle, last, last + 1, NULL)) {
        PyObject *deadline = self->objects[AT_deadline_ns];
        PyObject *orders[] = {deadline ? deadline : Py_None, pause, review};
        Control *control = (Control *)self->objects[AT__control];
        is_given_away = hand_over(
            (Job *)job, thread, lane, self->objects[AT__arrays], (PyObject *)control,
            orders);
        if (is_given_away)
            control->fields = (Fields *)Py_NewRef((PyObject *)self);
        else { /* what is wrong with the arrays is for `advance` to raise */
            PyObject *type, *value, *trace;
            PyErr_Fetch(&type, &value, &trace);
            if (PyObject_SetAttr(lane, state->names[NAME_work], Py_None)
                || PyList_Append(idle, lane))
                PyErr_Clear();
            PyErr_Restore(type, value, trace);
            if (PyErr_ExceptionMatches(PyExc_Exception))
                PyErr_Clear();
            else
                is_given_away = -1;
        }
    }
    Py_XDECREF(review);
    Py_XDECREF(thread);
    Py_DECREF(lane);
    return is_given_away;
}

/* Have the last of these lanes go on with a run; nothing is made for it: there is a
 * workspace, and a job. */
static PyObject *
Fields_offer(PyObject *run, PyTypeObject *type, PyObject *const *args, Py_ssize_t nargs,
             PyObject *names)
{
    State *state = PyType_GetModuleState(type);
    Fields *self = (Fields *)run;
    PyObject *executable = self->objects[AT__executable];
    PyObject *pause = self->objects[AT_pause], *anywhere = self->objects[AT_ends_anywhere];
    if (nargs != 1 || names || !PyList_Check(args[0]) || !executable || !pause) {
        PyErr_SetString(PyExc_TypeError, "a run that has begun takes a list of lanes");
        return NULL;
    }
    if (!is_given(self->objects[AT__arrays]) || !self->objects[AT__plan]
        || is_given(self->objects[AT__execution]) || anywhere == Py_True)
        return Py_NewRef(Py_False);
    Py_INCREF(executable);
    Py_INCREF(pause);
    PyObject *job = NULL, *interrupt = NULL;
    int is_taken = spread(state, self, executable, pause);
    if (is_taken == 1)
        is_taken = equip(state, self);
    if (is_taken == 1)
        job = PyObject_GetAttr(self->objects[AT__workspace], state->names[NAME_job]);
    if (is_taken == 1 && (!job || !PyObject_TypeCheck(job, state->job)))
        is_taken = job ? 0 : -1;
    /* An abort and a pause are set first, then they call what they find here. So those
     * that were before this are seen behind it. */
    if (is_taken == 1) {
        PyObject *control = self->objects[AT__control];
        interrupt = PyObject_GetAttr(control, state->names[NAME_pause]);
        if (!interrupt
            || PyObject_SetAttr(pause, state->names[NAME_interrupt], interrupt))
            is_taken = -1;
        else if (is_given(self->objects[AT__abort_status]))
            Py_DECREF(Control_stop((Control *)control, NULL));
    }
    if (is_taken == 1)
        is_taken = give(state, self, args[0], job, pause);
    Py_XDECREF(interrupt);
    Py_XDECREF(job);
    Py_DECREF(pause);
    Py_DECREF(executable);
    return is_taken < 0 ? NULL : PyBool_FromLong(is_taken);
}

/* Return the run that others of its class are copied from: NULL without an error if
 * there is none, or nothing to bind. */
static PyObject *
blank_of(State *state, PyObject *kind, PyObject *executable, PyObject *arrays)
{
    if (arrays == Py_None)
        return NULL;
    PyObject *blanks = PyObject_GetAttr(executable, state->names[NAME_blanks]);
    PyObject *blank = blanks ? PyDict_GetItemWithError(blanks, kind) : NULL;
    Py_XINCREF(blank);
    Py_XDECREF(blanks);
    if (blank && !PyObject_TypeCheck(blank, state->fields))
        Py_CLEAR(blank);
    return blank;
}

/* Make a run; see `PythonRunFields.anew`, which makes all that cannot be copied. */
static PyObject *
made_run(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    enum { KIND, EXECUTABLE, REQUEST, ARRAYS, OPTIONS, CLIENT, COUNT };
    static const int given[][2] = {
        {AT__executable, EXECUTABLE}, {AT__request, REQUEST}, {AT__arrays, ARRAYS},
        {AT_client, CLIENT},
    };
    State *state = PyModule_GetState(module);
    PyObject *blank = NULL, *plan, *made;
    if (nargs != COUNT) {
        PyErr_Format(PyExc_TypeError, "made takes %d arguments, not %zd", COUNT, nargs);
        return NULL;
    }
    if (args[OPTIONS] == state->default_options)
        blank = blank_of(state, args[KIND], args[EXECUTABLE], args[ARRAYS]);
    if (!blank && PyErr_Occurred())
        return NULL;
    if (!blank) {
        int has = is_true(args[EXECUTABLE], state->names[NAME_goes_native]);
        if (has > 0)
            return PyObject_CallMethodObjArgs(
                args[KIND], state->names[NAME_anew], args[EXECUTABLE], args[REQUEST],
                args[ARRAYS], args[OPTIONS], args[CLIENT], NULL);
        /* There is to be no blank: one call less. */
        made = has ? NULL
                   : PyObject_CallFunctionObjArgs(
                       args[KIND], args[EXECUTABLE], args[REQUEST], args[OPTIONS],
                       args[CLIENT], NULL);
        if (made && args[ARRAYS] != Py_None && PyObject_TypeCheck(made, state->fields))
            set((Fields *)made, AT__arrays, Py_NewRef(args[ARRAYS]));
        return made;
    }
    plan = PyObject_GetAttr(args[REQUEST], state->names[NAME_plan]);
    made = plan ? PyType_GenericAlloc(Py_TYPE(blank), 0) : NULL;
    if (made) {
        Fields *self = (Fields *)made;
        for (int i = 0; i < OBJECT_COUNT; i++)
            self->objects[i] = Py_XNewRef(((Fields *)blank)->objects[i]);
        for (size_t i = 0; i < sizeof given / sizeof given[0]; i++)
            set(self, given[i][0], Py_NewRef(args[given[i][1]]));
        set(self, AT__plan, Py_NewRef(plan));
        set(self, AT_has_plan, Py_NewRef(Py_True));
        self->is_plain = 1;
    }
    Py_XDECREF(plan);
    Py_DECREF(blank);
    return made;
}

/* Note how long a run took, which its model learns from, several at once. */
static bool
note_lesson(State *state, Fields *self)
{
    PyObject *lessons = self->objects[AT__lessons];
    PyObject *lesson = Py_BuildValue("LLi", self->computed_ns, self->cpu_ns, 0);
    bool is_noted = lesson && !PyList_Append(lessons, lesson);
    Py_XDECREF(lesson);
    int is_due = is_noted ? PyList_Size(lessons) >= MOST_LESSONS : -1;
    if (!is_due)
        is_due = is_true(self->objects[AT__executable], state->names[NAME_is_young]);
    if (is_due <= 0)
        return !is_due;
    PyObject *learnt = PyObject_CallMethodObjArgs(
        self->objects[AT__executable], state->names[NAME_learn], NULL);
    Py_XDECREF(learnt);
    return learnt;
}

/* Return what those that await a run get, if the last one of its model got the same:
 * NULL without an error else. */
static PyObject *
usual_result(State *state, Fields *self)
{
    PyObject *shapes = self->objects[AT__shapes], *lessons = self->objects[AT__lessons];
    if (!self->is_plain || !self->objects[AT__executable] || !is_given(shapes)
        || is_given(self->objects[AT__error])
        || is_given(self->objects[AT_use]) || self->threads || !lessons
        || !PyList_Check(lessons) || is_true(state->execution, state->names[NAME_is_on]))
        return NULL;
    PyObject *result =
        PyObject_GetAttr(self->objects[AT__executable], state->names[NAME_result]);
    PyObject *known =
        result ? PyObject_GetAttr(result, state->names[NAME_output_shapes]) : NULL;
    if (known != shapes)
        Py_CLEAR(result);
    Py_XDECREF(known);
    return result;
}

/* Report the outcome: what most runs come to here, all else in Python. */
static PyObject *
Fields_finish(PyObject *run, PyTypeObject *type, PyObject *const *Py_UNUSED(args),
              Py_ssize_t Py_UNUSED(nargs), PyObject *Py_UNUSED(names))
{
    State *state = PyType_GetModuleState(type);
    Fields *self = (Fields *)run;
    PyObject *result = usual_result(state, self), *answer = NULL;
    if (PyErr_Occurred())
        return NULL;
    if (!result)
        return PyObject_CallMethodObjArgs(run, state->names[NAME__finish], NULL);
    PyObject *report = self->objects[AT__report];
    if (!is_given(report))
        answer = PyObject_CallMethodObjArgs(
            run, state->names[NAME__resolve], result, NULL);
    else {
        Py_INCREF(report); /* it may forget that itself */
        answer = PyObject_CallFunctionObjArgs(
            report, Py_None, self->objects[AT__shapes], state->no_timing, NULL);
        Py_DECREF(report);
    }
    Py_DECREF(result);
    Py_XDECREF(answer);
    bool is_done = answer && note_lesson(state, self); /* what fails now loses no end */
    return is_done ? Py_NewRef(state->none) : NULL;
}

static int
Fields_traverse(Fields *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->end.result);
    Py_VISIT(self->end.waiting);
    for (int i = 0; i < OBJECT_COUNT; i++)
        Py_VISIT(self->objects[i]);
    return 0;
}

static int
Fields_clear(Fields *self)
{
    Py_CLEAR(self->end.result);
    Py_CLEAR(self->end.waiting);
    for (int i = 0; i < OBJECT_COUNT; i++)
        Py_CLEAR(self->objects[i]);
    return 0;
}

static void
Fields_dealloc(Fields *self)
{
    PyObject_GC_UnTrack(self);
    Fields_clear(self);
    free_type((PyObject *)self);
}

/* ---- the module ----------------------------------------------------------------- */

#define PLAIN(function) (PyCFunction)(void (*)(void))function

static PyMethodDef segment_methods[] = {
    {"run", PLAIN(Segment_run), METH_VARARGS, NULL},
    {"interrupt", PLAIN(Segment_interrupt), METH_NOARGS, NULL},
    {"clear_interrupt", PLAIN(Segment_clear_interrupt), METH_NOARGS, NULL},
    {"end", PLAIN(Segment_end), METH_NOARGS, NULL},
    {"forget", PLAIN(Segment_forget), METH_NOARGS, NULL},
    {"bound_addresses", PLAIN(Segment_bound_addresses), METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot segment_slots[] = {
    {Py_tp_doc, "A graph of an engine; see asyncnn.engine.job.PythonSegment."},
    {Py_tp_init, Segment_init},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, Segment_dealloc},
    {Py_tp_traverse, Segment_traverse},
    {Py_tp_clear, Segment_clear},
    {Py_tp_methods, segment_methods},
    {0, NULL},
};

static PyType_Spec segment_spec = {
    .name = "asyncnn.engine._job.Segment",
    .basicsize = sizeof(Segment),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = segment_slots,
};

static PyMethodDef control_methods[] = {
    {"stop", PLAIN(Control_stop), METH_NOARGS, NULL},
    {"pause", PLAIN(Control_pause), METH_NOARGS, NULL},
    {"longest", PLAIN(Control_longest), METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef control_getters[] = {
    {"position", (getter)Control_position, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot control_slots[] = {
    {Py_tp_doc, "Stops and pauses one run of a job; see asyncnn.engine.job."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, Control_dealloc},
    {Py_tp_methods, control_methods},
    {Py_tp_getset, control_getters},
    {0, NULL},
};

static PyType_Spec control_spec = {
    .name = "asyncnn.engine._job.Control",
    .basicsize = sizeof(Control),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = control_slots,
};

static PyMethodDef job_methods[] = {
    {"run", PLAIN(Job_run), METH_FASTCALL, NULL},
    {"offer", PLAIN(Job_offer), METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot job_slots[] = {
    {Py_tp_doc, "Segments that one call runs; see asyncnn.engine.job."},
    {Py_tp_init, Job_init},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, Job_dealloc},
    {Py_tp_traverse, Job_traverse},
    {Py_tp_methods, job_methods},
    {0, NULL},
};

static PyType_Spec job_spec = {
    .name = "asyncnn.engine._job.Job",
    .basicsize = sizeof(Job),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = job_slots,
};

#define OBJECT(name) \
    {#name, T_OBJECT_EX, offsetof(Fields, objects) + sizeof(PyObject *) * AT_##name, 0, \
     NULL},

static PyMemberDef fields_members[] = {
    OBJECTS(OBJECT)
    {"_started_ns", T_LONGLONG, offsetof(Fields, started_ns), 0, NULL},
    {"_ended_ns", T_LONGLONG, offsetof(Fields, ended_ns), 0, NULL},
    {"computed_ns", T_LONGLONG, offsetof(Fields, computed_ns), 0, NULL},
    {"_cpu_ns", T_LONGLONG, offsetof(Fields, cpu_ns), 0, NULL},
    {"_threads", T_INT, offsetof(Fields, threads), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

#define OWN METH_METHOD | METH_FASTCALL | METH_KEYWORDS

static PyMethodDef fields_methods[] = {
    {"offer", PLAIN(Fields_offer), OWN, NULL},
    {"finish", PLAIN(Fields_finish), OWN, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot fields_slots[] = {
    {Py_tp_doc, "What a run has; see asyncnn.engine.job.PythonRunFields."},
    {Py_tp_dealloc, Fields_dealloc},
    {Py_tp_traverse, Fields_traverse},
    {Py_tp_clear, Fields_clear},
    {Py_tp_methods, fields_methods},
    {Py_tp_members, fields_members},
    {0, NULL},
};

static PyType_Spec fields_spec = {
    .name = "asyncnn.engine._job.RunFields",
    .basicsize = sizeof(Fields),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = fields_slots,
};

static PyMethodDef port_methods[] = {
    {"drain", PLAIN(Port_drain), METH_O, NULL},
    {"bring", PLAIN(Port_bring), METH_VARARGS, NULL},
    {"lane", PLAIN(Port_lane), METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot port_slots[] = {
    {Py_tp_doc, "What has ended on lanes; see asyncnn.engine.job."},
    {Py_tp_init, Port_init},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, Port_dealloc},
    {Py_tp_methods, port_methods},
    {0, NULL},
};

static PyType_Spec port_spec = {
    .name = "asyncnn.engine._job.Port",
    .basicsize = sizeof(Port),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = port_slots,
};

static PyMethodDef lane_methods[] = {
    {"close", PLAIN(Lane_close), METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef lane_getters[] = {
    {"has_ended", (getter)Lane_has_ended, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot lane_slots[] = {
    {Py_tp_doc, "A thread without an interpreter; see asyncnn.engine.job."},
    {Py_tp_init, Lane_init},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, Lane_dealloc},
    {Py_tp_methods, lane_methods},
    {Py_tp_getset, lane_getters},
    {0, NULL},
};

static PyType_Spec lane_spec = {
    .name = "asyncnn.engine._job.Lane",
    .basicsize = sizeof(Lane),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = lane_slots,
};

/* Take an attribute of a module that is imported. */
static PyObject *
taken(const char *module, const char *name)
{
    PyObject *from = PyImport_ImportModule(module);
    PyObject *found = from ? PyObject_GetAttrString(from, name) : NULL;
    Py_XDECREF(from);
    return found;
}

/* Have all that fields and their methods need. */
static bool
prepare_fields(State *state, PyObject *module)
{
    static const char *const names[] = {
#define TEXT(name) #name,
        NAMES(TEXT)
    };
    for (int i = 0; i < NAME_COUNT; i++)
        if (!(state->names[i] = PyUnicode_InternFromString(names[i])))
            return false;
    PyObject *statuses = taken("asyncnn.hal.types", "ErrorStatus");
    state->none = statuses ? PyObject_GetAttrString(statuses, "NONE") : NULL;
    Py_XDECREF(statuses);
    state->no_timing = taken("asyncnn.hal.types", "NO_TIMING");
    state->execution = taken("asyncnn.logs", "EXECUTION");
    state->cpuexe = taken("asyncnn.logs", "CPUEXE");
    state->default_options = taken("asyncnn.hal.types", "DEFAULT_OPTIONS");
    PyObject *end = taken("asyncnn._turn", "End");
    PyObject *type = end ? PyType_FromModuleAndSpec(module, &fields_spec, end) : NULL;
    state->fields = (PyTypeObject *)type;
    Py_XDECREF(end);
    return type && !PyModule_AddType(module, state->fields) && state->none
           && state->no_timing && state->default_options && state->execution
           && state->cpuexe;
}

static int
execute(PyObject *module)
{
    State *state = PyModule_GetState(module);
    static bool is_loaded = false;
    if (!is_loaded)
        pthread_atfork(NULL, NULL, begin_child);
    is_loaded = true;
    page_size = (Word)sysconf(_SC_PAGESIZE);
    if (!(state->segment = add_type(module, &segment_spec))
        || !(state->control = add_type(module, &control_spec))
        || !(state->port = add_type(module, &port_spec))
        || !(state->lane = add_type(module, &lane_spec))
        || !(state->job = add_type(module, &job_spec))
        || !prepare_fields(state, module)
        || PyModule_AddIntConstant(module, "MOST_LESSONS", MOST_LESSONS))
        return -1;
    PyObject *asked = PyLong_FromSize_t((Word)must_end);
    int failed = !asked || PyModule_AddObjectRef(module, "MUST_END", asked);
    Py_XDECREF(asked);
    return failed ? -1 : 0;
}

#define KEPT(F) F(segment) F(control) F(port) F(lane) F(job) F(fields)

static int
traverse(PyObject *module, visitproc visit, void *arg)
{
    State *state = PyModule_GetState(module);
#define VISIT(type) Py_VISIT(state->type);
    KEPT(VISIT)
    return 0;
}

static int
clear(PyObject *module)
{
    State *state = PyModule_GetState(module);
#define FORGET(type) Py_CLEAR(state->type);
    KEPT(FORGET) FORGET(none) FORGET(no_timing) FORGET(execution) FORGET(cpuexe)
    FORGET(default_options)
    for (int i = 0; i < NAME_COUNT; i++)
        Py_CLEAR(state->names[i]);
    return 0;
}

static PyMethodDef functions[] = {
    {"made", PLAIN(made_run), METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

NATIVE_MODULE(
    _job,
    .m_doc = "Runs on graphs of engines, compiled.",
    .m_size = sizeof(State),
    .m_methods = functions,
    .m_traverse = traverse,
    .m_clear = clear)
