"""Fused paths: the memory's part of a step and the base's update at once. Each is the twin of the plain one.

``kernels`` knows hardware and no policy beyond what a device must decide for itself.
"""
