/* The ring of call_ring.py, compiled: the same class for the same callers.
 *
 * A call of a burst takes some microseconds, of which noting it may take little. What
 * is noted lies in memory that another process may read at any time: `begin` takes the
 * number out of a record before it changes the rest, and puts the new one in last.
 */

#include "../../_native.h"

#include <string.h>
#include <time.h>

/* Of a record; see call_ring.py. */
enum { BEGAN = 8, ENDED = 16, STATUS = 24, FLAGS = 28, RESULT = 32, TEMPLATE = 40 };
enum { TEMPLATE_BYTES = 64, RECORD_BYTES = TEMPLATE + TEMPLATE_BYTES };

typedef struct {
    PyObject_HEAD
    Py_buffer records; /* .obj is NULL until there are some */
    uint64_t count;
    uint64_t last;
} CallRing;

static int64_t
now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int
ring_init(CallRing *self, PyObject *args, PyObject *kwargs)
{
    PyObject *records;
    if (kwargs && PyDict_Size(kwargs)) {
        PyErr_SetString(PyExc_TypeError, "CallRing takes no keywords");
        return -1;
    }
    if (!PyArg_ParseTuple(args, "O:CallRing", &records))
        return -1;
    if (self->records.obj) {
        PyErr_SetString(PyExc_ValueError, "the ring has its records already");
        return -1;
    }
    if (PyObject_GetBuffer(records, &self->records, PyBUF_WRITABLE))
        return -1;
    self->count = (uint64_t)self->records.len / RECORD_BYTES;
    self->last = 0;
    if (!self->count) {
        PyBuffer_Release(&self->records);
        PyErr_SetString(PyExc_ValueError, "there is no room for a record");
        return -1;
    }
    return 0;
}

static void
ring_dealloc(CallRing *self)
{
    PyTypeObject *type = Py_TYPE(self);
    if (self->records.obj)
        PyBuffer_Release(&self->records);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* Note a call that began at a time; return its number. */
static uint64_t
noted(CallRing *self, const char *template, int64_t began)
{
    uint64_t call = ++self->last;
    char *record = (char *)self->records.buf + call % self->count * RECORD_BYTES;
    uint64_t none = 0;
    int32_t pending = -1;
    memcpy(record, &none, 8);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    memcpy(record + BEGAN, &began, 8);
    memset(record + ENDED, 0, TEMPLATE - ENDED);
    memcpy(record + STATUS, &pending, 4);
    memcpy(record + TEMPLATE, template, TEMPLATE_BYTES);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    memcpy(record, &call, 8);
    return call;
}

static PyObject *
note_end(CallRing *self, uint64_t call, PyObject *given)
{
    long status = PyLong_AsLong(given);
    if (status == -1 && PyErr_Occurred())
        return NULL;
    if (call && self->count) {
        char *record = (char *)self->records.buf + call % self->count * RECORD_BYTES;
        uint64_t kept;
        memcpy(&kept, record, 8);
        if (kept == call) {
            int64_t ended = now_ns();
            int32_t ending = (int32_t)status;
            memcpy(record + STATUS, &ending, 4);
            memcpy(record + ENDED, &ended, 8);
        }
    }
    Py_INCREF(Py_None);
    return Py_None;
}

/* Return the bytes of a template, NULL with an exception set if it is none. */
static const char *
template_of(PyObject *given)
{
    char *template;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(given, &template, &length))
        return NULL;
    if (length != TEMPLATE_BYTES) {
        PyErr_SetString(PyExc_ValueError, "a template of another size");
        return NULL;
    }
    return template;
}

static PyObject *
begin(CallRing *self, PyObject *given)
{
    const char *template = template_of(given);
    if (!template)
        return NULL;
    if (!self->count) {
        PyErr_SetString(PyExc_ValueError, "there is no room for a record");
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(noted(self, template, now_ns()));
}

static PyObject *
end(CallRing *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "end takes a call and a status");
        return NULL;
    }
    uint64_t call = PyLong_AsUnsignedLongLong(args[0]);
    if (call == (uint64_t)-1 && PyErr_Occurred())
        return NULL;
    return note_end(self, call, args[1]);
}

/* ---- calls that come again --------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    CallRing *ring;
    uint64_t call;
    char template[TEMPLATE_BYTES];
} CallNote;

static int
note_init(CallNote *self, PyObject *args, PyObject *kwargs)
{
    PyObject *ring, *given;
    if (kwargs && PyDict_Size(kwargs)) {
        PyErr_SetString(PyExc_TypeError, "CallNote takes no keywords");
        return -1;
    }
    if (!PyArg_ParseTuple(args, "OO:CallNote", &ring, &given))
        return -1;
    const char *template = template_of(given);
    if (!template)
        return -1;
    destructor own = (destructor)PyType_GetSlot(Py_TYPE(ring), Py_tp_dealloc);
    if (own != (destructor)ring_dealloc || !((CallRing *)ring)->count) {
        PyErr_SetString(PyExc_TypeError, "no ring to note calls in");
        return -1;
    }
    memcpy(self->template, template, TEMPLATE_BYTES);
    Py_INCREF(ring);
    Py_XDECREF((PyObject *)self->ring);
    self->ring = (CallRing *)ring;
    return 0;
}

static void
note_dealloc(CallNote *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF((PyObject *)self->ring);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyObject *
note_begin(CallNote *self, PyObject *given)
{
    int64_t began = PyLong_AsLongLong(given);
    if (began == -1 && PyErr_Occurred())
        return NULL;
    if (self->ring)
        self->call = noted(self->ring, self->template, began);
    Py_INCREF(Py_None);
    return Py_None;
}

static PyObject *
note_ended(CallNote *self, PyObject *status)
{
    if (self->ring)
        return note_end(self->ring, self->call, status);
    Py_INCREF(Py_None);
    return Py_None;
}

static PyObject *
note_call(CallNote *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(self->call);
}

static PyMethodDef note_methods[] = {
    {"begin", (PyCFunction)note_begin, METH_O, NULL},
    {"end", (PyCFunction)note_ended, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef note_attributes[] = {
    {"call", (getter)note_call, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot note_slots[] = {
    {Py_tp_init, note_init},
    {Py_tp_dealloc, note_dealloc},
    {Py_tp_methods, note_methods},
    {Py_tp_getset, note_attributes},
    {0, NULL},
};

static PyType_Spec note_spec = {
    .name = "asyncnn.service.driver._calls.CallNote",
    .basicsize = sizeof(CallNote),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = note_slots,
};

static PyMethodDef methods[] = {
    {"begin", (PyCFunction)begin, METH_O, NULL},
    {"end", (PyCFunction)(void (*)(void))end, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_init, ring_init},
    {Py_tp_dealloc, ring_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "asyncnn.service.driver._calls.CallRing",
    .basicsize = sizeof(CallRing),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};

static int
execute(PyObject *module)
{
    PyTypeObject *ring = add_type(module, &spec);
    PyTypeObject *note = ring ? add_type(module, &note_spec) : NULL;
    bool is_whole = note != NULL;
    Py_XDECREF((PyObject *)ring);
    Py_XDECREF((PyObject *)note);
    return is_whole ? 0 : -1;
}

NATIVE_MODULE(_calls);
