/* Ends that tasks await, compiled; turn.py has the protocol and its twin in Python.
 *
 * A waiter speaks to a task as a future does: the task asks for its loop, adds one
 * callback, and reads its result. None is ever given to anybody else.
 */

#include "_native.h"
#include <structmember.h>

#include <stddef.h>
#include <time.h>

/* Of turn.py, whose tests compare. */
#define TURN_NS 200000

typedef struct {
    PyTypeObject *waiter;
    PyObject *running_loop;
    PyObject *current_task;
    PyObject *tasks; /* by loop: those that run; NULL where asyncio does not say */
    PyObject *cancelled;
    PyObject *run; /* names, made once */
    PyObject *value;
    PyObject *elsewhere;
    PyObject *loop;
    int64_t turned_ns; /* when one that did not wait gave the loop a turn */
} State;

/* What is to go on at the end of what the loop of this thread does: a list, or NULL. */
static _Thread_local PyObject *woken;

typedef struct {
    PyObject_HEAD
    PyObject *loop;
    PyObject *end; /* that is awaited; NULL once the task has gone on */
    PyObject *result;
    PyObject *callback;
    PyObject *context;
    PyObject *others; /* pairs, where there is more than one callback */
    PyObject *message; /* of who has cancelled it */
    char blocking;
    bool is_cancelled;
    bool waits; /* it had no result at once */
    bool rests; /* it gives the loop a turn before its result, which it had at once */
} Waiter;

static int64_t
now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* ---- waiters -------------------------------------------------------------------- */

static State *
state_of(Waiter *self)
{
    return PyType_GetModuleState(Py_TYPE((PyObject *)self));
}

static bool
has_ended(const Waiter *self)
{
    return self->result || self->is_cancelled;
}

/* Return the loop, borrowed; one that had a result at once asks for it only here. */
static PyObject *
loop_of(Waiter *self)
{
    if (!self->loop)
        self->loop = PyObject_CallNoArgs(state_of(self)->running_loop);
    return self->loop;
}

/* Call a function with a waiter, in a context if there is one; now, or by the loop. */
static bool
call(Waiter *self, PyObject *function, PyObject *context, bool now)
{
    PyObject *answer;
    bool has_context = context && context != Py_None;
    if (now)
        answer = has_context
                   ? PyObject_CallMethodObjArgs(
                       context, state_of(self)->run, function, (PyObject *)self, NULL)
                   : PyObject_CallFunctionObjArgs(function, (PyObject *)self, NULL);
    else {
        PyObject *loop = loop_of(self);
        PyObject *soon = loop ? PyObject_GetAttrString(loop, "call_soon") : NULL;
        PyObject *arguments = Py_BuildValue("(OO)", function, (PyObject *)self);
        PyObject *names = has_context ? Py_BuildValue("{sO}", "context", context) : NULL;
        bool is_made = soon && arguments && (names || !has_context);
        answer = is_made ? PyObject_Call(soon, arguments, names) : NULL;
        Py_XDECREF(names);
        Py_XDECREF(arguments);
        Py_XDECREF(soon);
    }
    Py_XDECREF(answer);
    return answer;
}

/* Call all that is left to call. */
static bool
call_all(Waiter *self, bool now)
{
    PyObject *function = self->callback, *context = self->context;
    self->callback = self->context = NULL;
    bool is_done = !function || call(self, function, context, now);
    Py_XDECREF(function);
    Py_XDECREF(context);
    while (is_done && self->others && PyList_Size(self->others)) {
        PyObject *pair = Py_NewRef(PyList_GetItem(self->others, 0));
        is_done = !PyList_SetSlice(self->others, 0, 1, NULL)
                  && call(self, PyTuple_GetItem(pair, 0), PyTuple_GetItem(pair, 1), now);
        Py_DECREF(pair);
    }
    return is_done;
}

/* Have the task go on: at the end of this turn where it can be, else in the next one. */
static bool
go_on(Waiter *self)
{
    if (woken)
        return !PyList_Append(woken, (PyObject *)self);
    return call_all(self, false);
}

static PyObject *
Waiter_add_done_callback(Waiter *self, PyObject *const *args, Py_ssize_t nargs,
                         PyObject *names)
{
    Py_ssize_t named = names ? PyTuple_Size(names) : 0;
    if (nargs != 1 || named > 1
        || (named && PyUnicode_CompareWithASCIIString(PyTuple_GetItem(names, 0),
                                                      "context"))) {
        PyErr_SetString(PyExc_TypeError, "it takes a function, and context=");
        return NULL;
    }
    PyObject *function = args[0], *context = named ? args[1] : Py_None;
    if (has_ended(self)) {
        if (!call(self, function, context, false))
            return NULL;
    } else if (!self->callback) {
        self->callback = Py_NewRef(function);
        self->context = Py_NewRef(context);
    } else {
        PyObject *pair = PyTuple_Pack(2, function, context);
        if (pair && !self->others)
            self->others = PyList_New(0);
        bool failed = !pair || !self->others || PyList_Append(self->others, pair);
        Py_XDECREF(pair);
        if (failed)
            return NULL;
    }
    return Py_NewRef(Py_None);
}

static PyObject *
Waiter_cancel(Waiter *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"msg", NULL};
    PyObject *message = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O", names, &message))
        return NULL;
    if (has_ended(self))
        return Py_NewRef(Py_False);
    self->is_cancelled = true;
    if (message != Py_None)
        self->message = Py_NewRef(message);
    return call_all(self, false) ? Py_NewRef(Py_True) : NULL;
}

static PyObject *
Waiter_result(Waiter *self, PyObject *Py_UNUSED(ignored))
{
    State *state = state_of(self);
    if (self->result)
        return Py_NewRef(self->result);
    if (self->is_cancelled)
        PyErr_SetObject(state->cancelled, self->message);
    else
        PyErr_SetString(PyExc_RuntimeError, "it has not ended");
    return NULL;
}

static PyObject *
Waiter_done(Waiter *self, PyObject *Py_UNUSED(ignored))
{
    return PyBool_FromLong(has_ended(self));
}

static PyObject *
Waiter_get_loop(Waiter *self, PyObject *Py_UNUSED(ignored))
{
    return Py_XNewRef(loop_of(self));
}

/* Return what awaiting gives: the result, or what the end makes of it. */
static PyObject *
value_of(Waiter *self)
{
    PyObject *result = Waiter_result(self, NULL), *end = self->end;
    if (!result || !end)
        return result;
    self->end = NULL;
    PyObject *value = result;
    PyObject *make = PyObject_GetAttr(end, state_of(self)->value);
    if (make != Py_None) {
        value = make ? PyObject_CallFunctionObjArgs(make, result, NULL) : NULL;
        Py_DECREF(result);
    }
    Py_XDECREF(make);
    Py_DECREF(end);
    return value;
}

static PySendResult
Waiter_send(Waiter *self, PyObject *Py_UNUSED(value), PyObject **result)
{
    *result = NULL;
    if (self->rests) {
        self->rests = false;
        *result = Py_NewRef(Py_None);
        return PYGEN_NEXT;
    }
    if (has_ended(self)) {
        *result = value_of(self);
        return *result ? PYGEN_RETURN : PYGEN_ERROR;
    }
    if (self->blocking || self->callback) {
        PyErr_SetString(PyExc_RuntimeError, "only a task of asyncio can wait for it");
        return PYGEN_ERROR;
    }
    self->blocking = 1;
    *result = Py_NewRef((PyObject *)self);
    return PYGEN_NEXT;
}

static PyObject *
Waiter_next(Waiter *self)
{
    PyObject *result;
    if (Waiter_send(self, Py_None, &result) == PYGEN_RETURN) {
        /* By hand, or a tuple would be taken for arguments. */
        PyObject *stop =
            PyObject_CallFunctionObjArgs(PyExc_StopIteration, result, NULL);
        if (stop)
            PyErr_SetObject(PyExc_StopIteration, stop);
        Py_XDECREF(stop);
        Py_CLEAR(result);
    }
    return result;
}

/* Raise what the task is thrown; that it was cancelled is for the end to know. */
static PyObject *
Waiter_throw(Waiter *self, PyObject *args)
{
    State *state = state_of(self);
    PyObject *type, *value = Py_None, *trace = Py_None;
    if (!PyArg_ParseTuple(args, "O|OO:throw", &type, &value, &trace))
        return NULL;
    bool is_instance = PyExceptionInstance_Check(type);
    if (!is_instance && !PyExceptionClass_Check(type)) {
        PyErr_SetString(PyExc_TypeError, "only an exception can be thrown");
        return NULL;
    }
    PyObject *end = self->end;
    self->end = NULL;
    PyObject *kind = is_instance ? (PyObject *)Py_TYPE(type) : type;
    int leaves = end && self->waits ? PyObject_IsSubclass(kind, state->cancelled) : 0;
    if (leaves > 0) {
        PyObject *result = PyObject_CallMethod(end, "_leave", "O", (PyObject *)self);
        leaves = result ? 0 : -1;
        Py_XDECREF(result);
    }
    Py_XDECREF(end);
    if (leaves < 0)
        return NULL;
    if (is_instance)
        PyErr_SetObject(kind, type);
    else
        PyErr_SetObject(kind, value == Py_None ? NULL : value);
    return NULL;
}

static int
Waiter_traverse(Waiter *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->loop);
    Py_VISIT(self->end);
    Py_VISIT(self->result);
    Py_VISIT(self->callback);
    Py_VISIT(self->context);
    Py_VISIT(self->others);
    Py_VISIT(self->message);
    return 0;
}

static int
Waiter_clear(Waiter *self)
{
    Py_CLEAR(self->loop);
    Py_CLEAR(self->end);
    Py_CLEAR(self->result);
    Py_CLEAR(self->callback);
    Py_CLEAR(self->context);
    Py_CLEAR(self->others);
    Py_CLEAR(self->message);
    return 0;
}

static void
Waiter_dealloc(Waiter *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    Waiter_clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* ---- ends ----------------------------------------------------------------------- */

static bool
is_given(PyObject *value)
{
    return value && value != Py_None;
}

/* Note a waiter at the end that it waits for. */
static bool
note(End *end, PyObject *waiter)
{
    if (!is_given(end->waiting)) {
        Py_XDECREF(end->waiting);
        end->waiting = PyDict_New();
    }
    return end->waiting && !PyDict_SetItem(end->waiting, waiter, Py_None);
}

/* Return whether an end that belongs to one loop is awaited there: 1, 0 or -1. */
static int
is_on(State *state, PyObject *end, PyObject *loop)
{
    PyObject *elsewhere = PyObject_GetAttr(end, state->elsewhere);
    if (!elsewhere)
        return -1;
    Py_DECREF(elsewhere);
    if (elsewhere == Py_None)
        return 1;
    PyObject *own = PyObject_GetAttr(end, state->loop);
    Py_XDECREF(own);
    return own ? own == loop : -1;
}

static PyObject *
End_await(PyObject *self, PyTypeObject *type, PyObject *const *Py_UNUSED(args),
          Py_ssize_t Py_UNUSED(nargs), PyObject *Py_UNUSED(names))
{
    State *state = PyType_GetModuleState(type);
    End *end = (End *)self;
    PyObject *made = PyType_GenericNew(state->waiter, NULL, NULL);
    Waiter *waiter = (Waiter *)made;
    if (!made)
        return NULL;
    waiter->end = Py_NewRef(self);
    if (is_given(end->result)) {
        waiter->result = Py_NewRef(end->result);
        int64_t now = now_ns();
        waiter->rests = now - state->turned_ns > TURN_NS;
        if (waiter->rests)
            state->turned_ns = now;
        return made;
    }
    waiter->loop = PyObject_CallNoArgs(state->running_loop);
    int is_here = waiter->loop ? is_on(state, self, waiter->loop) : -1;
    waiter->waits = true;
    if (is_here == 1 && note(end, made))
        return made;
    Py_DECREF(made);
    return is_here ? NULL : PyObject_CallMethodObjArgs(self, state->elsewhere, NULL);
}

/* Have all tasks that wait go on with a result. */
static bool
wake(End *end, PyObject *result)
{
    PyObject *waiting = end->waiting;
    end->waiting = NULL;
    if (!is_given(waiting)) {
        Py_XDECREF(waiting);
        return true;
    }
    PyObject *waiters = PySequence_List(waiting);
    Py_ssize_t count = waiters ? PyList_Size(waiters) : 0;
    bool is_done = waiters;
    for (Py_ssize_t i = 0; i < count && is_done; i++) {
        Waiter *waiter = (Waiter *)PyList_GetItem(waiters, i);
        if (has_ended(waiter))
            continue;
        waiter->result = Py_NewRef(result);
        is_done = go_on(waiter);
    }
    Py_XDECREF(waiters);
    Py_DECREF(waiting);
    return is_done;
}

/* Take the one argument of a method. */
static PyObject *
only(PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    if (nargs == 1 && !names)
        return args[0];
    PyErr_SetString(PyExc_TypeError, "it takes a result");
    return NULL;
}

static PyObject *
End_wake(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    PyObject *result = only(args, nargs, names);
    return result && wake((End *)self, result) ? Py_NewRef(Py_None) : NULL;
}

static PyObject *
End_resolve(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    End *end = (End *)self;
    PyObject *result = only(args, nargs, names), *before = end->result;
    if (!result)
        return NULL;
    if (is_given(before)) {
        PyObject *turn = PyImport_ImportModule("asyncnn.turn");
        Py_XDECREF(turn ? PyObject_CallMethod(turn, "refuse", NULL) : NULL);
        Py_XDECREF(turn);
        return NULL;
    }
    end->result = Py_NewRef(result);
    Py_XDECREF(before);
    return wake(end, result) ? Py_NewRef(Py_None) : NULL;
}

static int
End_traverse(End *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->result);
    Py_VISIT(self->waiting);
    return 0;
}

static int
End_clear(End *self)
{
    Py_CLEAR(self->result);
    Py_CLEAR(self->waiting);
    return 0;
}

static void
End_dealloc(End *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    End_clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* ---- turns ---------------------------------------------------------------------- */

/* Have those go on that were woken, in order; whoever fails leaves the rest to the loop.
 * Keeps what is raised, unless more is. */
static void
end_turn(PyObject *list)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    bool now = true;
    for (Py_ssize_t i = 0; i < PyList_Size(list); i++) {
        Waiter *waiter = (Waiter *)PyList_GetItem(list, i);
        if (call_all(waiter, now))
            continue;
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(trace);
        PyErr_Fetch(&type, &value, &trace);
        if (now)
            i--; /* what is left of its callbacks */
        now = false;
    }
    PyErr_Restore(type, value, trace);
}

static PyObject *
in_this_turn(PyObject *module, PyObject *handle)
{
    State *state = PyModule_GetState(module);
    if (woken)
        return PyObject_CallNoArgs(handle);
    /* Python 3.11 has no function of C that asks for the task. */
    if (!state->tasks || PyDict_Size(state->tasks)) {
        PyObject *task = PyObject_CallNoArgs(state->current_task);
        if (!task)
            return NULL;
        Py_DECREF(task);
        if (task != Py_None)
            return PyObject_CallNoArgs(handle);
    }
    PyObject *list = woken = PyList_New(0);
    if (!list)
        return NULL;
    PyObject *result = PyObject_CallNoArgs(handle);
    woken = NULL;
    end_turn(list);
    Py_DECREF(list);
    if (PyErr_Occurred())
        Py_CLEAR(result);
    return result;
}

/* ---- the module ----------------------------------------------------------------- */

#define PLAIN(function) (PyCFunction)(void (*)(void))function

static PyMethodDef waiter_methods[] = {
    {"add_done_callback", PLAIN(Waiter_add_done_callback),
     METH_FASTCALL | METH_KEYWORDS, NULL},
    {"cancel", PLAIN(Waiter_cancel), METH_VARARGS | METH_KEYWORDS, NULL},
    {"result", PLAIN(Waiter_result), METH_NOARGS, NULL},
    {"done", PLAIN(Waiter_done), METH_NOARGS, NULL},
    {"get_loop", PLAIN(Waiter_get_loop), METH_NOARGS, NULL},
    {"throw", PLAIN(Waiter_throw), METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef waiter_members[] = {
    {"_asyncio_future_blocking", T_BOOL, offsetof(Waiter, blocking), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot waiter_slots[] = {
    {Py_tp_doc, "What a task waits for; see asyncnn.turn."},
    {Py_tp_dealloc, Waiter_dealloc},
    {Py_tp_traverse, Waiter_traverse},
    {Py_tp_clear, Waiter_clear},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, Waiter_next},
    {Py_am_send, Waiter_send},
    {Py_tp_methods, waiter_methods},
    {Py_tp_members, waiter_members},
    {0, NULL},
};

static PyType_Spec waiter_spec = {
    .name = "asyncnn._turn.Waiter",
    .basicsize = sizeof(Waiter),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = waiter_slots,
};

static PyMethodDef end_methods[] = {
    {"__await__", PLAIN(End_await), METH_METHOD | METH_FASTCALL | METH_KEYWORDS, NULL},
    {"_wake", PLAIN(End_wake), METH_FASTCALL | METH_KEYWORDS, NULL},
    {"_resolve", PLAIN(End_resolve), METH_FASTCALL | METH_KEYWORDS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef end_members[] = {
    {"_result", T_OBJECT, offsetof(End, result), 0, NULL},
    {"_waiting", T_OBJECT, offsetof(End, waiting), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot end_slots[] = {
    {Py_tp_doc, "What comes once, and is awaited; see asyncnn.turn."},
    {Py_tp_dealloc, End_dealloc},
    {Py_tp_traverse, End_traverse},
    {Py_tp_clear, End_clear},
    {Py_tp_methods, end_methods},
    {Py_tp_members, end_members},
    {0, NULL},
};

static PyType_Spec end_spec = {
    .name = "asyncnn._turn.End",
    .basicsize = sizeof(End),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = end_slots,
};

static PyMethodDef functions[] = {
    {"in_this_turn", in_this_turn, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static bool
take(const char *module, const char *name, PyObject **place)
{
    PyObject *from = PyImport_ImportModule(module);
    *place = from ? PyObject_GetAttrString(from, name) : NULL;
    Py_XDECREF(from);
    return *place;
}

static int
execute(PyObject *module)
{
    State *state = PyModule_GetState(module);
    state->waiter = add_type(module, &waiter_spec);
    PyObject *end = (PyObject *)add_type(module, &end_spec);
    int failed = !state->waiter || !end
                 || PyModule_AddIntConstant(module, "TURN_NS", TURN_NS)
                 || !(state->run = PyUnicode_InternFromString("run"))
                 || !(state->value = PyUnicode_InternFromString("_value"))
                 || !(state->elsewhere = PyUnicode_InternFromString("_wait_elsewhere"))
                 || !(state->loop = PyUnicode_InternFromString("loop"))
                 || PyObject_SetAttr(end, state->value, Py_None)
                 || PyObject_SetAttr(end, state->elsewhere, Py_None)
                 || !take("asyncio", "get_running_loop", &state->running_loop)
                 || !take("asyncio", "current_task", &state->current_task)
                 || !take("asyncio", "CancelledError", &state->cancelled);
    if (!failed && !take("_asyncio", "_current_tasks", &state->tasks))
        PyErr_Clear();
    if (state->tasks && !PyDict_Check(state->tasks))
        Py_CLEAR(state->tasks);
    Py_XDECREF(end);
    return failed ? -1 : 0;
}

static int
traverse(PyObject *module, visitproc visit, void *arg)
{
    State *state = PyModule_GetState(module);
    Py_VISIT(state->waiter);
    Py_VISIT(state->running_loop);
    Py_VISIT(state->current_task);
    Py_VISIT(state->tasks);
    Py_VISIT(state->cancelled);
    return 0;
}

static int
clear(PyObject *module)
{
    State *state = PyModule_GetState(module);
    Py_CLEAR(state->waiter);
    Py_CLEAR(state->running_loop);
    Py_CLEAR(state->current_task);
    Py_CLEAR(state->tasks);
    Py_CLEAR(state->cancelled);
    Py_CLEAR(state->run);
    Py_CLEAR(state->value);
    Py_CLEAR(state->elsewhere);
    Py_CLEAR(state->loop);
    return 0;
}

NATIVE_MODULE(
    _turn,
    .m_doc = "Ends that tasks await, compiled.",
    .m_size = sizeof(State),
    .m_methods = functions,
    .m_traverse = traverse,
    .m_clear = clear)
