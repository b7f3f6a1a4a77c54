/* Arrays of a run as most callers give them, compiled; requests.py has what it does.
 *
 * It says None of whatever needs a second look, and raises nothing that a caller can
 * bring about: requests.py looks again, and says what is wrong.
 */

#include "../_native.h"

#include <stddef.h>

enum { C_CONTIGUOUS = 0x1, ALIGNED = 0x100 }; /* of NumPy's flags */

/* A tensor: its name, dtype and shape. */
typedef struct {
    PyObject *name;
    PyObject *dtype;
    PyObject *shape;
} Tensor;

typedef struct {
    PyObject_HEAD
    PyObject *ndarray; /* NumPy's class */
    PyObject *make;    /* makes an array of a shape and a dtype */
    PyObject *outputs; /* makes an empty dictionary of outputs */
    Py_ssize_t inputs;
    Py_ssize_t count; /* of inputs and outputs */
    Tensor *tensors;
} Usual;

typedef struct {
    PyObject *dtype; /* names, made once */
    PyObject *shape;
    PyObject *flags;
    PyObject *num;
} State;

/* Return whether an attribute is what it is to be: 1, 0 or -1. */
static int
has(PyObject *array, PyObject *name, PyObject *wanted)
{
    PyObject *found = PyObject_GetAttr(array, name);
    if (!found)
        return -1;
    int is_same = found == wanted ? 1 : PyObject_RichCompareBool(found, wanted, Py_EQ);
    Py_DECREF(found);
    return is_same;
}

/* Return whether a value is an array that can be used where it lies: 1, 0 or -1. */
static int
is_usual(Usual *self, const Tensor *tensor, PyObject *value)
{
    State *state = PyType_GetModuleState(Py_TYPE((PyObject *)self));
    if ((PyObject *)Py_TYPE(value) != self->ndarray)
        return 0;
    int is_same = has(value, state->dtype, tensor->dtype);
    if (is_same == 1)
        is_same = has(value, state->shape, tensor->shape);
    if (is_same != 1)
        return is_same;
    PyObject *flags = PyObject_GetAttr(value, state->flags);
    PyObject *bits = flags ? PyObject_GetAttr(flags, state->num) : NULL;
    long long known = bits ? PyLong_AsLongLong(bits) : -1;
    Py_XDECREF(bits);
    Py_XDECREF(flags);
    if (known < 0)
        return -1;
    return (known & C_CONTIGUOUS) && (known & ALIGNED);
}

/* Return an input from what a caller gives, as a reference of one's own: what looks at it
 * may collect garbage, whose finalisers may do anything. NULL if it is not there. */
static PyObject *
given_as(Usual *self, PyObject *values, Py_ssize_t number)
{
    PyObject *found = values;
    if (PyDict_CheckExact(values))
        found = PyDict_GetItemWithError(values, self->tensors[number].name);
    else if (PyList_CheckExact(values))
        found = PyList_GetItem(values, number);
    return Py_XNewRef(found);
}

/* Return whether as many inputs are given as there are. */
static bool
are_complete(Usual *self, PyObject *values)
{
    if (PyDict_CheckExact(values))
        return PyDict_Size(values) == self->inputs;
    if (PyList_CheckExact(values))
        return PyList_Size(values) == self->inputs;
    return self->inputs == 1; /* the only one itself */
}

/* Put a new array for each output into a dictionary, and behind the inputs. */
static PyObject *
made_outputs(Usual *self, PyObject *tensors)
{
    PyObject *outputs = PyObject_CallNoArgs(self->outputs);
    for (Py_ssize_t i = self->inputs; outputs && i < self->count; i++) {
        Tensor *tensor = &self->tensors[i];
        PyObject *made =
            PyObject_CallFunctionObjArgs(self->make, tensor->shape, tensor->dtype, NULL);
        if (!made || PyDict_SetItem(outputs, tensor->name, made))
            Py_CLEAR(outputs);
        if (made && PyTuple_SetItem(tensors, i, made))
            Py_CLEAR(outputs);
    }
    return outputs;
}

/* Return all tensors of a run, and its outputs by name; None if an input is unusual. */
static PyObject *
Usual_take(Usual *self, PyObject *values)
{
    bool are_usual = self->tensors && are_complete(self, values);
    PyObject *tensors = are_usual ? PyTuple_New(self->count) : NULL;
    for (Py_ssize_t i = 0; tensors && i < self->inputs; i++) {
        PyObject *value = given_as(self, values, i);
        int answer = value ? is_usual(self, &self->tensors[i], value) : 0;
        if (answer != 1) {
            Py_XDECREF(value);
            Py_CLEAR(tensors);
        } else if (PyTuple_SetItem(tensors, i, value)) /* takes it in any case */
            Py_CLEAR(tensors);
    }
    PyObject *outputs = tensors ? made_outputs(self, tensors) : NULL;
    if (outputs)
        return Py_BuildValue("NN", tensors, outputs);
    Py_XDECREF(tensors);
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception))
        return NULL;
    PyErr_Clear();
    return Py_NewRef(Py_None);
}

static bool
take_tensors(Usual *self, PyObject *given)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(given); i++) {
        Tensor *tensor = &self->tensors[self->count];
        PyObject *part = PyTuple_GetItem(given, i);
        if (!PyTuple_Check(part)
            || !PyArg_ParseTuple(part, "OOO!", &tensor->name, &tensor->dtype,
                                 &PyTuple_Type, &tensor->shape)) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_TypeError, "a tensor is a tuple");
            return false;
        }
        Py_INCREF(tensor->name);
        Py_INCREF(tensor->dtype);
        Py_INCREF(tensor->shape);
        self->count++;
    }
    return true;
}

static int
Usual_init(Usual *self, PyObject *args, PyObject *names)
{
    PyObject *inputs, *outputs, *ndarray, *make, *dictionary;
    if (!PyArg_ParseTuple(args, "O!O!OOO", &PyTuple_Type, &inputs, &PyTuple_Type,
                          &outputs, &ndarray, &make, &dictionary))
        return -1;
    if (self->tensors || (names && PyDict_Size(names))) {
        PyErr_SetString(PyExc_ValueError, "it is initialised once, by position");
        return -1;
    }
    size_t count = (size_t)(PyTuple_Size(inputs) + PyTuple_Size(outputs));
    self->tensors = PyMem_Calloc(count ? count : 1, sizeof(Tensor));
    if (!self->tensors) {
        PyErr_NoMemory();
        return -1;
    }
    self->ndarray = Py_NewRef(ndarray);
    self->make = Py_NewRef(make);
    self->outputs = Py_NewRef(dictionary);
    self->inputs = PyTuple_Size(inputs);
    return take_tensors(self, inputs) && take_tensors(self, outputs) ? 0 : -1;
}

static int
Usual_traverse(Usual *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT(self->ndarray);
    Py_VISIT(self->make);
    Py_VISIT(self->outputs);
    for (Py_ssize_t i = 0; i < self->count; i++) {
        Py_VISIT(self->tensors[i].name);
        Py_VISIT(self->tensors[i].dtype);
    }
    return 0;
}

static void
Usual_dealloc(Usual *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    for (Py_ssize_t i = 0; i < self->count; i++) {
        Py_DECREF(self->tensors[i].name);
        Py_DECREF(self->tensors[i].dtype);
        Py_DECREF(self->tensors[i].shape);
    }
    PyMem_Free(self->tensors);
    Py_XDECREF(self->ndarray);
    Py_XDECREF(self->make);
    Py_XDECREF(self->outputs);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMethodDef usual_methods[] = {
    {"take", (PyCFunction)(void (*)(void))Usual_take, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot usual_slots[] = {
    {Py_tp_doc, "Arrays of a run as most callers give them; see OutputSpace.taking."},
    {Py_tp_init, Usual_init},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, Usual_dealloc},
    {Py_tp_traverse, Usual_traverse},
    {Py_tp_methods, usual_methods},
    {0, NULL},
};

static PyType_Spec usual_spec = {
    .name = "asyncnn.runtime._arrays.UsualArrays",
    .basicsize = sizeof(Usual),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = usual_slots,
};

static int
execute(PyObject *module)
{
    State *state = PyModule_GetState(module);
    PyTypeObject *usual = add_type(module, &usual_spec);
    Py_XDECREF((PyObject *)usual);
    bool is_whole = usual && (state->dtype = PyUnicode_InternFromString("dtype"))
                    && (state->shape = PyUnicode_InternFromString("shape"))
                    && (state->flags = PyUnicode_InternFromString("flags"))
                    && (state->num = PyUnicode_InternFromString("num"));
    return is_whole ? 0 : -1;
}

static int
clear(PyObject *module)
{
    State *state = PyModule_GetState(module);
    Py_CLEAR(state->dtype);
    Py_CLEAR(state->shape);
    Py_CLEAR(state->flags);
    Py_CLEAR(state->num);
    return 0;
}

NATIVE_MODULE(
    _arrays,
    .m_doc = "Arrays of a run as most callers give them, compiled.",
    .m_size = sizeof(State),
    .m_clear = clear)
