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

static PyObject *
begin(CallRing *self, PyObject *given)
{
    char *template;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(given, &template, &length))
        return NULL;
    if (length != TEMPLATE_BYTES || !self->count) {
        PyErr_SetString(PyExc_ValueError, "a template of another size");
        return NULL;
    }
    uint64_t call = ++self->last;
    char *record = (char *)self->records.buf + call % self->count * RECORD_BYTES;
    uint64_t none = 0;
    int64_t began = now_ns();
    int32_t pending = -1;
    memcpy(record, &none, 8);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    memcpy(record + BEGAN, &began, 8);
    memset(record + ENDED, 0, TEMPLATE - ENDED);
    memcpy(record + STATUS, &pending, 4);
    memcpy(record + TEMPLATE, template, TEMPLATE_BYTES);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    memcpy(record, &call, 8);
    return PyLong_FromUnsignedLongLong(call);
}

static PyObject *
end(CallRing *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "end takes a call and a status");
        return NULL;
    }
    uint64_t call = PyLong_AsUnsignedLongLong(args[0]), kept;
    if (call == (uint64_t)-1 && PyErr_Occurred())
        return NULL;
    long status = PyLong_AsLong(args[1]);
    if (status == -1 && PyErr_Occurred())
        return NULL;
    if (call && self->count) {
        char *record = (char *)self->records.buf + call % self->count * RECORD_BYTES;
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
    PyTypeObject *type = add_type(module, &spec);
    Py_XDECREF((PyObject *)type);
    return type ? 0 : -1;
}

NATIVE_MODULE(_calls);
