"""Capabilities of this machine: packages, devices, memory and profiles. Imports none of the packages."""
