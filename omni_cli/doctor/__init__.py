"""Capabilities of this machine: packages, devices, memory and profiles, determined without importing them."""
