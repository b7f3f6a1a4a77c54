"""Recurrent kernels: LSTM and RNN in all their forms, SVDF, and LSTM in integers.

``unroll`` walks float cells along sequences, as in ``lstm`` and ``rnn``.
Integer cells compute one step as TensorFlow Lite does, bit for bit: ``integer_steps``
says what raw values mean and has the steps of a cell, ``integer_packing`` prepares its
weights.
"""
