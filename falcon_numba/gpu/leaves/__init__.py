"""Leaf families: one file each, one batched kernel each."""
