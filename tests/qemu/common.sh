# shellcheck shell=bash
# Shared by the scripts of this directory that provide what tests of virtual machines need: QEMU, and Debian's kernel for
# clouds with the modules of the Linux guest. The kernel is fetched, and never installed.
#
#   CHANCERY_TEST_LINUX  directory with such a kernel, instead of an entry of the cache: `vmlinuz`, and the modules as
#                        `modules/NAME.ko`. `tests/run` sets it to the entry that it has checked
set -euo pipefail

scripts="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
. "$scripts/../cache.sh"

fail() { printf 'tests/qemu/%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

# Modules that the Linux guest needs, with those that they need.
modules=(virtio virtio_ring virtio_pci virtio_pci_legacy_dev virtio_pci_modern_dev virtio_blk virtio_net net_failover failover
  evdev button pvpanic pvpanic-mmio)

# Prints name and version of the kernel's package, as the package lists of this machine have them; nothing if they have none.
kernel_package() {
  { apt-cache show --no-all-versions linux-image-cloud-amd64 2>/dev/null || true; } |
    sed -n 's/^Depends: \(linux-image-[^ ]*\) (= \([^)]*\))$/\1=\2/p'
}

# PACKAGE: prints the path of the entry with its files.
linux_entry() { echo "$1 ${modules[*]}" | cache_entry linux; }
