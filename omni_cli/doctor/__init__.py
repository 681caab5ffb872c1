"""What this machine can run: packages, devices, memory and profiles, found out without importing them."""
