"""Kernels for boxes around objects: refine, select, pool, and find key points in them.

They share ``boxes``: what a box is, what stored values stand for, and which boxes
survive one another. Loops go over boxes, classes, images and taps, never pixels.
"""
