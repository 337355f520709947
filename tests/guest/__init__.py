"""A Debian guest under QEMU, for what this machine's own kernel and init cannot show."""
