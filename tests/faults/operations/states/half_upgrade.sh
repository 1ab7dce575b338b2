#!/bin/sh
# What an interrupted unattended upgrade leaves: libraries of the next release, the module of this one, a package that is only unpacked,
# the headers gone with the old kernel's clean-up, and the module too.
set -e
new=580.178.04-1
kernel=$(uname -r)
cd /tmp
apt-get -q download "libcuda1=$new" "libnvidia-ml1=$new" "nvidia-persistenced=$new"
dpkg --force-depends --force-hold --install "libcuda1_${new}_"*.deb "libnvidia-ml1_${new}_"*.deb
dpkg --force-depends --force-hold --unpack "nvidia-persistenced_${new}_"*.deb
dpkg --force-depends --purge "linux-headers-$kernel"
rm -f "/lib/modules/$kernel/updates/dkms/nvidia.ko"
