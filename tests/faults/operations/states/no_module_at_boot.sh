#!/bin/sh
# A driver release whose module is not there when the host boots, as if its build had been lost; releases before it are well.
set -e
cat >/usr/local/sbin/lose-module <<'LOSE'
#!/bin/sh
find /lib/modules -path '*/updates/dkms/nvidia.ko' -exec grep -q 580.178.04 {} \; -delete
LOSE
chmod 0755 /usr/local/sbin/lose-module
cat >/etc/systemd/system/lose-module.service <<'UNIT'
[Unit]
DefaultDependencies=no
After=local-fs.target
Before=sandbox-hardware.service
[Service]
Type=oneshot
ExecStart=/usr/local/sbin/lose-module
[Install]
WantedBy=sysinit.target
UNIT
systemctl -q enable lose-module.service
