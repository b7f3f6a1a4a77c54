/* The ring of ring.py, compiled: the same class for the same callers.
 *
 * What ring.py has to borrow from the strong order of x86-64 is asked for by name here:
 * a counter is stored with release and loaded with acquire semantics, and what wakes a
 * sleeper is kept apart from the counter by a sequentially consistent fence. So it is
 * right on every processor; ring.py has the argument. It also looks at a counter
 * with the instruction that leaves the core to its other hardware thread meanwhile.
 *
 * Nothing in here waits or gives up the interpreter lock but `look_on`, which spins as
 * spin.py says: all other waiting is left to queue.py.
 */

#include "../_native.h"
#include <structmember.h>

#include <limits.h>
#include <sched.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>

#if !__GCC_ATOMIC_LLONG_LOCK_FREE
#error "words of 64 bits are not atomic here"
#endif

/* Numbers of the words; see layout.py. */
enum { READ = 0, WRITTEN = 16, READER_SLEEPS = 32, WRITER_SLEEPS = 48, WORDS = 64 };

/* Of spin.py; its tests compare. */
enum {
    FEW_LOOKS = 1,
    BUDGET_NS = 50000,
    SHARED_YIELD_NS = 1500,
    SLOW_YIELD_NS = 100000,
};

typedef struct {
    PyObject_HEAD
    Py_buffer words; /* owns the mapping; .obj is NULL once the ring is closed */
    Py_buffer data;
    uint64_t capacity;
    uint64_t quantum;
    uint64_t count;
    uint64_t read;
    uint64_t written;
    uint64_t limit; /* what `written` may grow to without asking for room again */
    PyObject *wake_peer;
    PyObject *error; /* returns what is raised once the ring is closed */
    long hits; /* of `look_on`, that its spinner has yet to hear of */
} Ring;

/* ---- words ---------------------------------------------------------------------- */

static inline uint64_t
load(const Ring *self, int word)
{
    return __atomic_load_n((uint64_t *)self->words.buf + word, __ATOMIC_ACQUIRE);
}

static inline void
store(const Ring *self, int word, uint64_t value)
{
    __atomic_store_n((uint64_t *)self->words.buf + word, value, __ATOMIC_RELEASE);
}

static inline void
relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("isb" ::: "memory");
#endif
}

/* Return whether a word differs from `seen`, looking `looks` times at most. */
static inline bool
has_moved(const Ring *self, int word, uint64_t seen, unsigned long long looks)
{
    while (looks--) {
        if (load(self, word) != seen)
            return true;
        if (looks)
            relax();
    }
    return false;
}

/* ---- errors --------------------------------------------------------------------- */

/* Raise InvalidArgumentError in the interpreter that runs. */
static void
refuse(const char *format, ...)
{
    PyObject *errors = PyImport_ImportModule("asyncnn.hal.errors"), *kind = NULL;
    if (errors)
        kind = PyObject_GetAttrString(errors, "InvalidArgumentError");
    if (kind) {
        va_list values;
        va_start(values, format);
        PyErr_FormatV(kind, format, values);
        va_end(values);
    }
    Py_XDECREF(kind);
    Py_XDECREF(errors);
}

/* Call an object that the call itself may replace: hold a reference for as long. */
static PyObject *
call(PyObject *callable)
{
    if (!callable) {
        PyErr_SetString(PyExc_AttributeError, "there is nothing to call");
        return NULL;
    }
    Py_INCREF(callable);
    PyObject *result = PyObject_CallNoArgs(callable);
    Py_DECREF(callable);
    return result;
}

static bool
is_open(Ring *self)
{
    if (self->words.obj)
        return true;
    if (!self->error) {
        PyErr_SetString(PyExc_ValueError, "the ring was not initialised");
        return false;
    }
    PyObject *error = call(self->error);
    if (error) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
    }
    return false;
}

/* Have `_break` close the ring and raise. */
static void
break_ring(Ring *self, uint64_t unread)
{
    PyObject *result = PyObject_CallMethod(
        (PyObject *)self, "_break", "L", (long long)unread);
    if (result) {
        Py_DECREF(result);
        PyErr_SetString(PyExc_SystemError, "_break returned");
    }
}

static inline bool
is_possible(const Ring *self, uint64_t unread)
{
    return unread <= self->capacity && unread % self->quantum == 0;
}

static bool
unread_bytes(Ring *self, uint64_t *unread)
{
    *unread = load(self, WRITTEN) - self->read; /* [packet] */
    if (is_possible(self, *unread))
        return true;
    break_ring(self, *unread);
    return false;
}

static bool
room_bytes(Ring *self, uint64_t *room)
{
    uint64_t read = load(self, READ), unread = self->written - read; /* [space] */
    /* One that is ahead of what was written is so by less than a ring if it wraps. */
    if (read > self->written || !is_possible(self, unread)) {
        break_ring(self, unread);
        return false;
    }
    *room = self->capacity - unread;
    self->limit = self->written + *room;
    return true;
}

/* ---- arguments ----------------------------------------------------------------- */

static bool
count_of(PyObject *number, unsigned long long *count)
{
    *count = PyLong_AsUnsignedLongLong(number);
    return *count != ULLONG_MAX || !PyErr_Occurred();
}

/* Convert a count to a number, or to 0 if it is out of range. */
static bool
elements_of(PyObject *count, uint64_t *elements)
{
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(count, &overflow);
    *elements = number > 0 && !overflow ? (uint64_t)number : 0;
    return number != -1 || !PyErr_Occurred();
}

static bool
takes(const char *name, Py_ssize_t given, Py_ssize_t least, Py_ssize_t most)
{
    if (least <= given && given <= most)
        return true;
    PyErr_Format(PyExc_TypeError, "%s does not take %zd arguments", name, given);
    return false;
}

/* ---- packets -------------------------------------------------------------------- */

/* Wake the peer if it has announced that it sleeps. The fence comes between the store
 * of the counter and the load of the announcement; see "Waking" in ring.py. */
static bool
wake_if_asleep(Ring *self, int flag)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (!load(self, flag)) /* [sleep] */
        return true;
    store(self, flag, 0); /* before it rings: later it could undo the next sleep */
    PyObject *result = call(self->wake_peer);
    Py_XDECREF(result);
    return result != NULL;
}

static bool
publish(Ring *self, uint64_t size)
{
    self->written += size;
    store(self, WRITTEN, self->written); /* [packet] */
    return wake_if_asleep(self, READER_SLEEPS);
}

static bool
consume(Ring *self, uint64_t size)
{
    self->read += size;
    store(self, READ, self->read); /* [space] */
    return wake_if_asleep(self, WRITER_SLEEPS);
}

static bool
is_positioned(uint64_t reached, uint64_t begun)
{
    if (reached == begun)
        return true;
    refuse("other elements were read or written since these spans were taken");
    return false;
}

static PyObject *
write_bytes(Ring *self, const char *bytes, uint64_t size)
{
    if (!is_open(self))
        return NULL;
    if (self->written + size > self->limit || size % self->quantum) {
        uint64_t room;
        if (!room_bytes(self, &room))
            return NULL;
        if (size > self->capacity || size % self->quantum) {
            refuse("%llu bytes are not 0 to %llu elements of %llu",
                   (unsigned long long)size, (unsigned long long)self->count,
                   (unsigned long long)self->quantum);
            return NULL;
        }
        if (size > room)
            return Py_NewRef(Py_False);
    }
    char *ring = self->data.buf;
    uint64_t start = self->written % self->capacity;
    uint64_t first = self->capacity - start;
    if (first > size)
        first = size;
    memmove(ring + start, bytes, first); /* it may be the ring that is written */
    memmove(ring, bytes + first, size - first);
    if (!publish(self, size))
        return NULL;
    return Py_NewRef(Py_True);
}

static PyObject *
Ring_write_nowait(Ring *self, PyObject *data)
{
    if (PyBytes_CheckExact(data))
        return write_bytes(self, PyBytes_AsString(data), (uint64_t)PyBytes_Size(data));
    Py_buffer view;
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *result = write_bytes(self, view.buf, (uint64_t)view.len);
    PyBuffer_Release(&view);
    return result;
}

/* Read `size` of the unread bytes. */
static PyObject *
read_bytes(Ring *self, uint64_t size)
{
    PyObject *packet = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (!packet)
        return NULL;
    const char *ring = self->data.buf;
    char *bytes = PyBytes_AsString(packet);
    uint64_t start = self->read % self->capacity;
    uint64_t first = self->capacity - start;
    if (first > size)
        first = size;
    memcpy(bytes, ring + start, first);
    memcpy(bytes + first, ring, size - first);
    if (!consume(self, size))
        Py_CLEAR(packet);
    return packet;
}

static PyObject *
Ring_read_nowait(Ring *self, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *count = nargs > 0 ? args[0] : Py_None;
    unsigned long long looks = 1;
    uint64_t elements = 0, unread;
    /* A count of another type may do anything when asked: ask before all checks. */
    if (!takes("read_nowait", nargs, 0, 2) || (nargs == 2 && !count_of(args[1], &looks))
        || (count != Py_None && !elements_of(count, &elements)) || !is_open(self))
        return NULL;
    has_moved(self, WRITTEN, self->read, looks);
    if (!unread_bytes(self, &unread))
        return NULL;
    uint64_t size = unread;
    if (count != Py_None) {
        if (!elements || elements > self->count) {
            refuse("%S elements of a queue that has room for 1 to %llu", count,
                   (unsigned long long)self->count);
            return NULL;
        }
        size = elements * self->quantum;
    }
    return unread && size <= unread ? read_bytes(self, size) : Py_NewRef(Py_None);
}

/* ---- spinning ------------------------------------------------------------------- */

static int64_t
now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* Call a method of a spinner, with a number if it has a format. */
static bool
notify(PyObject *spinner, const char *method, const char *format, long long number)
{
    PyObject *result = PyObject_CallMethod(spinner, method, format, number);
    Py_XDECREF(result);
    return result;
}

/* Notify a spinner of hits and of a slow yield. */
static bool
note_late(Ring *self, PyObject *spinner, int64_t took_ns)
{
    PyObject *hits = PyObject_GetAttrString(spinner, "hits");
    PyObject *more = hits ? PyLong_FromLong(self->hits) : NULL;
    PyObject *all = more ? PyNumber_Add(hits, more) : NULL;
    bool is_noted = all && !PyObject_SetAttrString(spinner, "hits", all);
    self->hits = 0;
    Py_XDECREF(all);
    Py_XDECREF(more);
    Py_XDECREF(hits);
    return is_noted && notify(spinner, "note_late", "L", took_ns);
}

/* Yield the core and look, by turns, for a packet: 1, 0 if none comes, or -1. */
static int
look_on(Ring *self, PyObject *spinner, unsigned long long looks)
{
    for (int64_t now = now_ns(), end = now + BUDGET_NS; now < end;) {
        int64_t before = now_ns();
        Py_BEGIN_ALLOW_THREADS
        sched_yield();
        Py_END_ALLOW_THREADS
        now = now_ns();
        if (!is_open(self)) /* another thread was here */
            return -1;
        int64_t took_ns = now - before;
        if (took_ns > SLOW_YIELD_NS)
            return note_late(self, spinner, took_ns) && is_open(self)
                       ? has_moved(self, WRITTEN, self->read, 1)
                       : -1;
        if (took_ns > SHARED_YIELD_NS && looks != FEW_LOOKS) {
            PyObject *few = PyLong_FromLong(looks = FEW_LOOKS);
            int failed = !few || PyObject_SetAttrString(spinner, "looks", few);
            Py_XDECREF(few);
            if (failed || !is_open(self))
                return -1;
        }
        if (has_moved(self, WRITTEN, self->read, looks)) {
            self->hits++;
            return 1;
        }
    }
    return notify(spinner, "note_miss", NULL, 0) && is_open(self) ? 0 : -1;
}

static PyObject *
Ring_read_spinning(Ring *self, PyObject *const *args, Py_ssize_t nargs)
{
    unsigned long long looks;
    uint64_t unread;
    if (!takes("_read_spinning", nargs, 2, 2) || !count_of(args[1], &looks)
        || !is_open(self))
        return NULL;
    if (!has_moved(self, WRITTEN, self->read, looks)) {
        int came = look_on(self, args[0], looks);
        if (came <= 0)
            return came ? NULL : Py_NewRef(Py_None);
    }
    if (!unread_bytes(self, &unread))
        return NULL;
    return unread ? read_bytes(self, unread) : Py_NewRef(Py_None);
}

static PyObject *
Ring_is_readable(Ring *self, PyObject *const *args, Py_ssize_t nargs)
{
    unsigned long long looks = 1;
    if (!takes("is_readable", nargs, 0, 1) || (nargs == 1 && !count_of(args[0], &looks))
        || !is_open(self))
        return NULL;
    return PyBool_FromLong(has_moved(self, WRITTEN, self->read, looks));
}

static PyObject *
Ring_available_to_read(Ring *self, PyObject *Py_UNUSED(ignored))
{
    uint64_t unread;
    if (!is_open(self) || !unread_bytes(self, &unread))
        return NULL;
    return PyLong_FromUnsignedLongLong(unread / self->quantum);
}

static PyObject *
Ring_available_to_write(Ring *self, PyObject *Py_UNUSED(ignored))
{
    uint64_t room;
    if (!is_open(self) || !room_bytes(self, &room))
        return NULL;
    return PyLong_FromUnsignedLongLong(room / self->quantum);
}

/* ---- for waiting and for spans ---------------------------------------------------- */

static bool
word_of(PyObject *number, int *word)
{
    long value = PyLong_AsLong(number);
    if (value == -1 && PyErr_Occurred())
        return false;
    if (value < 0 || value >= WORDS) {
        PyErr_Format(PyExc_IndexError, "there is no word %ld", value);
        return false;
    }
    *word = (int)value;
    return true;
}

static PyObject *
Ring_word(Ring *self, PyObject *number)
{
    int word;
    if (!word_of(number, &word) || !is_open(self))
        return NULL;
    return PyLong_FromUnsignedLongLong(load(self, word));
}

static PyObject *
Ring_has_moved(Ring *self, PyObject *const *args, Py_ssize_t nargs)
{
    int word;
    unsigned long long seen, looks = 1;
    if (!takes("_has_moved", nargs, 2, 3) || !word_of(args[0], &word)
        || !count_of(args[1], &seen) || (nargs == 3 && !count_of(args[2], &looks))
        || !is_open(self))
        return NULL;
    return PyBool_FromLong(has_moved(self, word, seen, looks));
}

static PyObject *
Ring_announce(Ring *self, PyObject *const *args, Py_ssize_t nargs)
{
    int flag, counter;
    unsigned long long seen;
    if (!takes("_announce", nargs, 3, 3) || !word_of(args[0], &flag)
        || !word_of(args[1], &counter) || !count_of(args[2], &seen) || !is_open(self))
        return NULL;
    store(self, flag, 1); /* [sleep] */
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (load(self, counter) == seen) /* [packet] or [space] */
        return Py_NewRef(Py_True);
    store(self, flag, 0);
    return Py_NewRef(Py_False);
}

static PyObject *
Ring_withdraw(Ring *self, PyObject *number)
{
    int flag;
    if (!word_of(number, &flag) || !is_open(self))
        return NULL;
    store(self, flag, 0);
    return Py_NewRef(Py_None);
}

static PyObject *
Ring_publish(Ring *self, PyObject *const *args, Py_ssize_t nargs)
{
    unsigned long long position, size;
    if (!takes("_publish", nargs, 2, 2) || !count_of(args[0], &position)
        || !count_of(args[1], &size) || !is_positioned(self->written, position)
        || !is_open(self) || !publish(self, size))
        return NULL;
    return Py_NewRef(Py_None);
}

static PyObject *
Ring_consume(Ring *self, PyObject *const *args, Py_ssize_t nargs)
{
    unsigned long long position, size;
    if (!takes("_consume", nargs, 2, 2) || !count_of(args[0], &position)
        || !count_of(args[1], &size) || !is_positioned(self->read, position)
        || !is_open(self) || !consume(self, size))
        return NULL;
    return Py_NewRef(Py_None);
}

/* ---- life ----------------------------------------------------------------------- */

static bool
number_of(PyObject *owner, const char *name, uint64_t *number)
{
    PyObject *value = PyObject_GetAttrString(owner, name);
    if (!value)
        return false;
    *number = PyLong_AsUnsignedLongLong(value);
    Py_DECREF(value);
    return !PyErr_Occurred();
}

static bool
buffer_of(PyObject *owner, const char *name, Py_buffer *buffer)
{
    PyObject *value = PyObject_GetAttrString(owner, name);
    if (!value)
        return false;
    int failed = PyObject_GetBuffer(value, buffer, PyBUF_WRITABLE);
    Py_DECREF(value);
    return !failed;
}

static void
replace(PyObject **place, PyObject *object)
{
    PyObject *old = *place;
    *place = Py_NewRef(object);
    Py_XDECREF(old);
}

static void
let_go(Ring *self)
{
    PyBuffer_Release(&self->words);
    PyBuffer_Release(&self->data);
}

static int
Ring_init(Ring *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"geometry", "pages", "wake_peer", NULL};
    PyObject *geometry, *pages, *wake_peer;
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "OOO", names, &geometry, &pages, &wake_peer))
        return -1;
    let_go(self);
    if (!number_of(geometry, "quantum", &self->quantum)
        || !number_of(geometry, "count", &self->count)
        || !number_of(pages, "read", &self->read)
        || !number_of(pages, "written", &self->written)
        || !buffer_of(pages, "ring", &self->data)
        || !buffer_of(pages, "words", &self->words))
        return -1;
    self->capacity = (uint64_t)self->data.len;
    self->limit = self->written;
    if (!self->quantum || !self->capacity
        || self->capacity != self->quantum * self->count
        || self->words.len < (Py_ssize_t)(WORDS * sizeof(uint64_t))) {
        let_go(self);
        PyErr_SetString(PyExc_ValueError, "these pages have another geometry");
        return -1;
    }
    replace(&self->wake_peer, wake_peer);
    Py_CLEAR(self->error);
    return 0;
}

static PyObject *
Ring_end(Ring *self, PyObject *error)
{
    replace(&self->error, error);
    let_go(self);
    return Py_NewRef(Py_None);
}

static int
Ring_traverse(Ring *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->words.obj);
    Py_VISIT(self->data.obj);
    Py_VISIT(self->wake_peer);
    Py_VISIT(self->error);
    return 0;
}

static int
Ring_clear(Ring *self)
{
    let_go(self);
    Py_CLEAR(self->wake_peer);
    Py_CLEAR(self->error);
    return 0;
}

static void
Ring_dealloc(Ring *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    Ring_clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyObject *
get_is_closed(Ring *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(!self->words.obj);
}

#define PLAIN(function) (PyCFunction)(void (*)(void))function

static PyMethodDef methods[] = {
    {"write_nowait", PLAIN(Ring_write_nowait), METH_O, NULL},
    {"read_nowait", PLAIN(Ring_read_nowait), METH_FASTCALL, NULL},
    {"_read_spinning", PLAIN(Ring_read_spinning), METH_FASTCALL, NULL},
    {"is_readable", PLAIN(Ring_is_readable), METH_FASTCALL, NULL},
    {"available_to_read", PLAIN(Ring_available_to_read), METH_NOARGS, NULL},
    {"available_to_write", PLAIN(Ring_available_to_write), METH_NOARGS, NULL},
    {"_word", PLAIN(Ring_word), METH_O, NULL},
    {"_has_moved", PLAIN(Ring_has_moved), METH_FASTCALL, NULL},
    {"_announce", PLAIN(Ring_announce), METH_FASTCALL, NULL},
    {"_withdraw", PLAIN(Ring_withdraw), METH_O, NULL},
    {"_publish", PLAIN(Ring_publish), METH_FASTCALL, NULL},
    {"_consume", PLAIN(Ring_consume), METH_FASTCALL, NULL},
    {"_end", PLAIN(Ring_end), METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"quantum", T_ULONGLONG, offsetof(Ring, quantum), READONLY, NULL},
    {"count", T_ULONGLONG, offsetof(Ring, count), READONLY, NULL},
    {"_read", T_ULONGLONG, offsetof(Ring, read), READONLY, NULL},
    {"_written", T_ULONGLONG, offsetof(Ring, written), READONLY, NULL},
    {"_wake_peer", T_OBJECT_EX, offsetof(Ring, wake_peer), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef getters[] = {
    {"is_closed", (getter)get_is_closed, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "One end of a queue; see asyncnn.fmq.ring.PythonRing."},
    {Py_tp_init, Ring_init},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, Ring_dealloc},
    {Py_tp_traverse, Ring_traverse},
    {Py_tp_clear, Ring_clear},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_tp_getset, getters},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "asyncnn.fmq._ring.Ring",
    .basicsize = sizeof(Ring),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};

static int
execute(PyObject *module)
{
    PyTypeObject *type = add_type(module, &spec);
    Py_XDECREF((PyObject *)type);
    if (!type)
        return -1;
    return -(PyModule_AddIntMacro(module, FEW_LOOKS)
             || PyModule_AddIntMacro(module, BUDGET_NS)
             || PyModule_AddIntMacro(module, SHARED_YIELD_NS)
             || PyModule_AddIntMacro(module, SLOW_YIELD_NS));
}

NATIVE_MODULE(_ring, .m_doc = "The ring of a queue, compiled.")
